"""The rewards, by name.

A reward is a callable `reward(*completions_per_agent) -> list[float]`; a registered one is a frozen dataclass
whose fields are its options. It may declare `reward_range` (least and greatest value) and `required_fields`
(dataset columns it reads).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from marl_runner.errors import ConfigError

REWARDS: dict[str, type[Any]] = {}
RewardClass = TypeVar("RewardClass", bound=type[Any])


def register_reward(name: str) -> Callable[[RewardClass], RewardClass]:
    """Class decorator that lists a reward under `name`.

    Raises:
        ConfigError: The name is taken.
    """

    def register(reward: RewardClass) -> RewardClass:
        if name in REWARDS:
            raise ConfigError(f"reward '{name}' is already registered by {REWARDS[name].__qualname__}")
        REWARDS[name] = reward
        return reward

    return register
