"""Advantage modes: the baseline subtracted from one agent's K returns at one node. One file each."""

from marl_runner.advantage_modes.max import Max
from marl_runner.advantage_modes.mean import Mean
from marl_runner.advantage_modes.raw import Raw
from marl_runner.advantage_modes.rloo import Rloo
from marl_runner.types import AdvantageMode

ADVANTAGE_MODES: dict[str, type[AdvantageMode]] = {"raw": Raw, "mean": Mean, "rloo": Rloo, "max": Max}
