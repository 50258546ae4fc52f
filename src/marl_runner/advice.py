"""What a run should be told before it starts: settings that are allowed and rarely meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_runner.settings import MAGRPOConfig


def advice(
    config: MAGRPOConfig, reward_range: tuple[float, float] | None, processor: Callable[[float], float] | None
) -> list[str]:
    """Warnings for this configuration, one sentence each.

    Args:
        config: The settings.
        reward_range: Least and greatest value the reward declares, or None.
        processor: Applied to every reward, or None.
    """
    warnings = []
    mode = mode_name(config.advantage_mode)
    if config.advantage_normalization and mode != "mean":
        warnings.append(
            f"advantage_mode={mode} makes NO DIFFERENCE here: advantage_normalization re-centres every group, so all "
            "modes give the same advantages; set trainer.advantage_normalization=false to keep the difference"
        )
    threshold = config.early_termination_threshold
    if reward_range is not None and threshold is not None and config.num_turns > 1:
        lowest = min(reward_range if processor is None else [processor(bound) for bound in reward_range])
        if lowest > threshold:
            warnings.append(
                f"no branch will ever reach turn 2: the reward is at least {lowest:g}, above "
                f"early_termination_threshold={threshold:g}; set trainer.early_termination_threshold=null, "
                "or shift the reward"
            )
    return warnings


def mode_name(mode: Any) -> str:
    """The name of a mode given by name or as an object."""
    name: str = mode if isinstance(mode, str) else mode.name
    return name
