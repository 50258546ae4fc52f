"""Reward processors: functions of one reward, applied to every joint reward."""

from __future__ import annotations

from collections.abc import Callable

RewardProcessor = Callable[[float], float]


class RewardProcessors:
    """Makers of the usual processors, under the reference implementation's names."""

    @staticmethod
    def scale(factor: float = 1.0) -> RewardProcessor:
        """A processor that multiplies a reward by `factor`."""
        return lambda reward: reward * factor

    @staticmethod
    def shift(value: float = 0.0) -> RewardProcessor:
        """A processor that adds `value` to a reward."""
        return lambda reward: reward + value
