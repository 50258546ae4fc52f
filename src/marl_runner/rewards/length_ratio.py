"""The story quick start: agent by agent, answers should grow by a given ratio."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar

from marl_runner.errors import ConfigError
from marl_runner.rewards.registry import register_reward


@register_reward("length_ratio")
@dataclass(frozen=True)
class LengthRatio:
    """1 if target_min <= rho <= target_max, else exp(-distance to that range); 0 if the shorter text is empty.

    rho = characters(c2) / characters(c1) for a team of two. A larger team gets the mean over neighbouring
    pairs (c_i, c_{i+1}).

    Attributes:
        target_min: Least ratio with full reward, >= 0.
        target_max: Greatest ratio with full reward, >= target_min.
    """

    target_min: float
    target_max: float

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    min_agents: ClassVar[int] = 2

    def __post_init__(self) -> None:
        if not 0 <= self.target_min <= self.target_max < math.inf:
            raise ConfigError(
                f"reward.target_min={self.target_min} and reward.target_max={self.target_max}: "
                "need 0 <= target_min <= target_max"
            )

    def __call__(self, *completions_N_J: list[str]) -> list[float]:
        """One reward in [0, 1] per joint action.

        Args:
            *completions_N_J: Per agent, its text in each joint action; at least two agents.
        """
        return [
            fmean(self._pair(first, second) for first, second in itertools.pairwise(texts_N))
            for texts_N in zip(*completions_N_J, strict=True)
        ]

    def _pair(self, first: str, second: str) -> float:
        if not first:
            return 0.0
        rho = len(second) / len(first)
        distance = max(self.target_min - rho, rho - self.target_max, 0.0)
        return math.exp(-distance)
