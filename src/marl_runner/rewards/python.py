"""A reward from a file or a module of the user's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from marl_runner.errors import ConfigError
from marl_runner.hooks import load_function


def python_reward(function: str, reward_range: list[float] | None) -> Callable[..., Any]:
    """Loads the reward function `function`, and declares its range if one is given.

    Args:
        function: `path/to/file.py:name` or `package.module:name`.
        reward_range: [least, greatest] value it returns, or None to leave what the function declares.

    Raises:
        ConfigError: It cannot be loaded, or the range is not two ordered numbers.
    """
    reward = load_function(function, key="reward.function")
    if reward_range is not None:
        if len(reward_range) != 2 or not reward_range[0] <= reward_range[1]:
            raise ConfigError(f"reward.reward_range must be [least, greatest], got {list(reward_range)}")
        reward = _declaring(reward, (float(reward_range[0]), float(reward_range[1])))
    return reward


def _declaring(reward: Callable[..., Any], reward_range: tuple[float, float]) -> Callable[..., Any]:
    """The same function and signature, with a `reward_range`; the user's object is left as it was."""

    @functools.wraps(reward)
    def declared(*args: Any, **kwargs: Any) -> Any:
        return reward(*args, **kwargs)

    declared.reward_range = reward_range  # type: ignore[attr-defined]
    return declared
