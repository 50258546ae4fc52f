"""Joint modes: which joint actions are scored, and which completion gets which return. One file each."""

from marl_runner.joint_modes.aligned import Aligned
from marl_runner.joint_modes.cross import Cross
from marl_runner.types import JointMode

JOINT_MODES: dict[str, type[JointMode]] = {"aligned": Aligned, "cross": Cross}
