"""The rules of a composed configuration: names, types, ranges, and relations between groups. Never imports torch."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

from marl_runner.advice import advice, mode_name
from marl_runner.errors import ConfigError
from marl_runner.hooks import check_source
from marl_runner.schema import (
    OPTION_GROUPS,
    SET_ELSEWHERE,
    RewardProcessorSchema,
    RunSchema,
    TrainerSchema,
    shown,
    unknown_key,
    wrong_value,
)
from marl_runner.settings import ALGORITHMS, MAGRPOConfig
from marl_runner.typed_options import check_option, constructed, option_target, typed_values
from marl_runner.types import DeclaresRange, DeclaresTeam


def check(cfg: DictConfig) -> None:
    """The rules between groups, and the names, types and ranges inside each, before anything heavy is imported.

    Raises:
        ConfigError: One short sentence with the value and the fix.
    """
    check_names(cfg)
    options = {group: check_option(group, cfg[group]) for group in OPTION_GROUPS}
    config = settings(cfg)
    reward = options["reward"]
    reward_bounds(cfg, reward)
    for group in ("reward", "transition"):
        if option_name(cfg[group]) == f"python_{group}":
            check_source(str(cfg[group].function), f"{group}.function")
    check_turns(cfg, config)
    if isinstance(reward, DeclaresTeam) and config.num_agents < reward.min_agents:
        raise ConfigError(
            f"reward {option_name(cfg.reward)} needs agents.num_agents >= {reward.min_agents}, got {config.num_agents}"
        )


def check_turns(cfg: DictConfig, config: MAGRPOConfig) -> None:
    """Several turns need a transition, and agents that see what it says.

    Raises:
        ConfigError: One is there without the other.
    """
    if config.num_turns > 1 and option_name(cfg.transition) == "no_transition":
        raise ConfigError(
            f"trainer.num_turns={config.num_turns} needs a transition: add transition=revise or transition=python"
        )
    if config.num_turns == 1 and option_name(cfg.transition) != "no_transition":
        raise ConfigError("a transition is chosen, but trainer.num_turns=1 never uses it: set trainer.num_turns=2")
    if config.num_turns == 1 or config.external_prompt_passthrough:
        return
    for role in cfg.agents.get("role_prompts") or ():
        if "{prompt}" not in role:
            raise ConfigError(
                f"agents.role_prompts: {role!r} has no {{prompt}}, so its agent would not see what the transition "
                "says; put {prompt} in it, or set trainer.external_prompt_passthrough=true"
            )


def check_names(cfg: DictConfig) -> None:
    """Refuses keys that `+key=value` or a user's YAML added beside the schema.

    Raises:
        ConfigError: Naming the key and the nearest valid one.
    """
    for prefix, node, schema in (
        ("", cfg, RunSchema),
        ("trainer.", cfg.trainer, TrainerSchema),
        ("reward_processor.", cfg.reward_processor, RewardProcessorSchema),
    ):
        valid = [f"{prefix}{field.name}" for field in dataclasses.fields(schema)]
        for name in node:
            key = f"{prefix}{name!s}"
            if key not in valid and key != "hydra":
                raise ConfigError(unknown_key(key, valid))
    for key in ("dry_run", "save_models"):
        if not isinstance(cfg[key], bool):
            raise ConfigError(wrong_value(key, shown(cfg[key]), bool))


def settings(cfg: DictConfig) -> MAGRPOConfig:
    """The algorithm's settings from the whole configuration.

    Raises:
        ConfigError: A value out of its range, under its key on the command line.
    """
    trainer = OmegaConf.to_container(cfg.trainer, resolve=True)
    assert isinstance(trainer, dict)
    named = {str(name): value for name, value in trainer.items()}
    try:
        return MAGRPOConfig(
            **named,
            num_agents=cfg.agents.num_agents,
            seed=cfg.seed,
            advantage_mode=mode_of("advantage_mode", cfg),
            joint_mode=mode_of("joint_mode", cfg),
            reward_num_workers=cfg.reward.get("num_workers", 1),
        )
    except ConfigError as error:
        field = re.split(r"[ =]", str(error))[0]
        key = f"trainer.{field}" if field in named else SET_ELSEWHERE.get(field, field)
        raise ConfigError(f"{key}{str(error).removeprefix(field)}") from error


def mode_of(group: str, cfg: DictConfig) -> Any:
    """The mode object of the advantage_mode or joint_mode group.

    Raises:
        ConfigError: It has no name, which messages and files need.
    """
    target = option_target(group, cfg[group])
    mode = constructed(group, target, typed_values(group, target, cfg[group]))
    try:
        mode_name(mode)
    except AttributeError as error:
        raise ConfigError(f"{group}._target_={cfg[group]._target_} needs a `name`, as every mode has") from error
    return mode


def algorithm_name(cfg: DictConfig) -> str:
    """The algorithm that the advantage mode makes; a mode of the user's own goes by its own name."""
    name = mode_name(mode_of("advantage_mode", cfg))
    return ALGORITHMS.get(name, name)


def option_name(node: DictConfig) -> str:
    """The last part of an option's `_target_`."""
    name: str = node._target_.rpartition(".")[2]
    return name


def reward_bounds(cfg: DictConfig, reward: Any) -> tuple[float, float] | None:
    """The least and greatest value that a reward declares, by itself or as `reward.reward_range`.

    Raises:
        ConfigError: They are not two ordered numbers.
    """
    declared = reward.reward_range if isinstance(reward, DeclaresRange) else cfg.reward.get("reward_range")
    if declared is None:
        return None
    if len(declared) != 2 or not declared[0] <= declared[1]:
        raise ConfigError(f"reward.reward_range must be [least, greatest], got {shown(list(declared))}")
    return float(declared[0]), float(declared[1])


def start_advice(cfg: DictConfig) -> list[str]:
    """The warnings for a composed configuration, without building anything."""
    bounds = reward_bounds(cfg, check_option("reward", cfg.reward))
    scale, shift = cfg.reward_processor.scale, cfg.reward_processor.shift
    return advice(settings(cfg), bounds, lambda value: value * scale + shift)
