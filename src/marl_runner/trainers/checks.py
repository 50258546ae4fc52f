"""What a trainer can find wrong before any model is loaded."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from marl_runner.advice import advice, mode_name
from marl_runner.datasets.fields import first_problem
from marl_runner.errors import ConfigError, DataError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.hooks import check_names, hook_name, signature_of
from marl_runner.rewards.call import RewardCaller
from marl_runner.sampling import overlong_message, prompt_limit
from marl_runner.settings import ALGORITHMS, MAGRPOConfig
from marl_runner.trainers.sources import Source
from marl_runner.transitions.call import TransitionCaller
from marl_runner.types import ChecksRows, DeclaresFields, DeclaresRange, DeclaresTeam, Task

advice_log = logging.getLogger("marl_runner.advice")


def check_args(args: Any, config_class: type[MAGRPOConfig]) -> MAGRPOConfig:
    """The settings, default ones where none were given.

    Raises:
        ConfigError: They are no settings of this package.
    """
    if args is None:
        return config_class()
    if not isinstance(args, MAGRPOConfig):
        kind = args if isinstance(args, type) else type(args)
        raise ConfigError(
            f"args must be a {config_class.__name__}(…) imported from marl_runner, "
            f"got {'the class ' if kind is args else 'a '}{kind.__module__}.{kind.__qualname__}"
        )
    return args


def algorithm_of(trainer: type[Any], config: MAGRPOConfig) -> str:
    """The algorithm that a trainer with this configuration runs: by its advantage mode, or a mode's own name.

    Raises:
        ConfigError: A variant's trainer was given another variant's mode.
    """
    mode = mode_name(config.advantage_mode)
    own = mode_name(trainer.config_class().advantage_mode)
    if mode != own and own != "mean":
        raise ConfigError(
            f"{trainer.__name__} runs advantage_mode={own}, but args say {mode}: pass a {trainer.config_class.__name__}"
        )
    return ALGORITHMS.get(mode, mode)


def check_hooks(
    config: MAGRPOConfig,
    num_agents: int,
    reward_func: Callable[..., Any] | None,
    reward_processor: Callable[[float], float] | None,
    external_transition: Callable[..., Any] | None,
) -> tuple[RewardCaller, TransitionCaller | None]:
    """Binds reward and transition to the team, and gives the warnings for this configuration.

    Raises:
        ConfigError: One is missing, or its signature or team size does not fit.
    """
    if reward_func is None:
        raise ConfigError("reward_func is required")
    if config.num_turns > 1 and external_transition is None:
        raise ConfigError(f"num_turns={config.num_turns} needs an external_transition; or set num_turns=1")
    if isinstance(reward_func, DeclaresTeam) and num_agents < reward_func.min_agents:
        raise ConfigError(
            f"reward {hook_name(reward_func)} needs at least {reward_func.min_agents} agents, got {num_agents}"
        )
    reward = RewardCaller(reward_func, num_agents, reward_processor, config.nonfinite_reward)
    transition = None if external_transition is None else TransitionCaller(external_transition, num_agents)
    for warning in advice(config, reward_range(reward_func), reward_processor):
        advice_log.warning(warning)
    return reward, transition


def check_callbacks(eval_logger: Callable[..., Any] | None, eval_aggregator: Callable[..., Any] | None) -> None:
    """Raises ConfigError if one of the two evaluation callbacks is missing, or the logger needs what is not offered."""
    if (eval_logger is None) != (eval_aggregator is None):
        missing = "eval_aggregator" if eval_aggregator is None else "eval_logger"
        raise ConfigError(f"eval_logger and eval_aggregator work only together: {missing} is missing")
    if eval_logger is not None:
        offered = {"agent_completions_turns", "batch_items", "prompts"}
        check_names(signature_of(eval_logger, "eval_logger"), offered, "eval_logger", hook_name(eval_logger))


def check_fields(tasks: Iterable[Task], reward_func: Any) -> None:
    """Checks the columns that a reward declares as `required_fields`, and what it says of each row.

    Raises:
        DataError: Naming the row and what is wrong with it.
    """
    fields = reward_func.required_fields if isinstance(reward_func, DeclaresFields) else ()
    checks_rows = isinstance(reward_func, ChecksRows)
    if not fields and not checks_rows:
        return
    for task in tasks:
        problem = first_problem(task.fields, fields) or (reward_func.check_row(task.fields) if checks_rows else "")
        if problem:
            raise DataError(f"row {task.uid} {problem}, needed by reward {type(reward_func).__name__}")


def check_first_prompts(
    tasks: Iterable[Task], sources: Sequence[Source], formatters: Sequence[PromptFormatter], config: MAGRPOConfig
) -> None:
    """Formats and measures every first prompt before any model is loaded.

    Raises:
        ConfigError: No room is left for a prompt beside `max_new_tokens`.
        DataError: A row that cannot be formatted, is empty, or is too long under `overlong_prompt=error`.
    """
    limits = [prompt_limit(source.context_length, config) for source in sources]
    for source, limit in zip(sources, limits, strict=True):
        if limit is not None and limit < 1:
            raise ConfigError(
                f"max_new_tokens={config.max_new_tokens} leaves no room for a prompt in the context of "
                f"{source.context_length} tokens of {source.name}; lower trainer.max_new_tokens"
            )
    for task in tasks:
        for agent, (source, formatter, limit) in enumerate(zip(sources, formatters, limits, strict=True)):
            where = f"row {task.uid}, agent {agent}"
            try:
                num_tokens = len(source.encode(formatter(task)))
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            if num_tokens == 0:
                raise DataError(f"the prompt of row {task.uid} is empty for agent {agent}")
            if limit is not None and num_tokens > limit and config.overlong_prompt == "error":
                raise DataError(overlong_message(num_tokens, limit, source.context_length, config, where))


def reward_range(reward_func: Callable[..., Any]) -> tuple[float, float] | None:
    """The (least, greatest) value a reward declares as `reward_range`, or None."""
    inner: Any = reward_func
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not isinstance(inner, DeclaresRange) or inner.reward_range is None:
        return None
    least, greatest = inner.reward_range
    return float(least), float(greatest)
