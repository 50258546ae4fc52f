"""The rules of a composed configuration: names, types, ranges, and relations between groups. Never imports torch."""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from hydra.utils import get_object
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.advice import advice
from marl_runner.errors import ConfigError
from marl_runner.schema import OPTION_GROUPS, RewardProcessorSchema, RunSchema, TrainerSchema
from marl_runner.settings import MAGRPOConfig

KINDS = {"Integer": "an integer", "Float": "a number", "Boolean": "true or false", "String": "text"}


def check(cfg: DictConfig) -> None:
    """The rules between groups, and the names, types and ranges inside each, before anything heavy is imported.

    Raises:
        ConfigError: One short sentence with the value and the fix.
    """
    check_names(cfg)
    options = {group: check_option(group, cfg[group]) for group in OPTION_GROUPS}
    config = settings(cfg)
    agents, reward = options["agents"], options["reward"]
    if config.num_turns > 1 and option_name(cfg.transition) == "no_transition":
        raise ConfigError(
            f"trainer.num_turns={config.num_turns} needs a transition: add transition=revise or transition=python"
        )
    if config.num_turns == 1 and option_name(cfg.transition) != "no_transition":
        raise ConfigError("a transition is chosen, but trainer.num_turns=1 never uses it: set trainer.num_turns=2")
    least = vars(type(reward)).get("min_agents", 1)
    if agents is not None and agents.num_agents < least:
        raise ConfigError(
            f"reward={cfg.reward._target_.split('.')[-2]} needs agents.num_agents >= {least}, got {agents.num_agents}"
        )
    if config.parallel_training == "mp" and isinstance(config.agent_devices, list):
        count = len(config.agent_devices)
        if count not in (1, config.num_agents):
            raise ConfigError(
                f"trainer.agent_devices has {count} entries, needs 1 or agents.num_agents={config.num_agents}"
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
            advantage_mode=mode_of(cfg.advantage_mode),
            joint_mode=mode_of(cfg.joint_mode),
        )
    except ConfigError as error:
        field = str(error).split()[0].split("=")[0]
        prefix = "" if field not in named else "trainer."
        raise ConfigError(f"{prefix}{error}") from error


def mode_of(node: DictConfig) -> Any:
    """The mode object of an advantage_mode or joint_mode group."""
    target: Callable[..., Any] = get_object(node._target_)
    return target(**{str(key): value for key, value in node.items() if key != "_target_"})


def algorithm_name(cfg: DictConfig) -> str:
    """The advantage mode's name, which chooses the algorithm: raw, mean, rloo, max, or a user's own."""
    name: str = mode_of(cfg.advantage_mode).name
    return name if name in ADVANTAGE_MODES else "mean"


def option_name(node: DictConfig) -> str:
    """The last part of an option's `_target_`."""
    name: str = node._target_.rpartition(".")[2]
    return name


def check_option(group: str, node: Any) -> Any:
    """Checks one group's keys and types against the class or function it names.

    Returns:
        The option itself where it is a dataclass, whose constructor checks the ranges; None for a function,
        which may import the user's code and is called when the run is built.

    Raises:
        ConfigError: The group names no class, the class cannot be imported, or a key or type is wrong.
    """
    if not OmegaConf.is_dict(node) or "_target_" not in node:
        raise ConfigError(f"{group} names no class: choose an option ({group}=…) or give {group}._target_")
    try:
        target: Any = get_object(node._target_)
    except Exception as error:
        raise ConfigError(f"{group}._target_={node._target_} cannot be imported: {error}") from error
    option: Callable[..., Any] = target
    values = {str(key): node._get_node(key) for key in node if key != "_target_"}
    parameters = inspect.signature(target).parameters
    for key in values:
        if key not in parameters:
            raise ConfigError(unknown_key(f"{group}.{key}", [f"{group}.{name}" for name in parameters]))
    for name, parameter in parameters.items():
        absent = name not in values and parameter.default is inspect.Parameter.empty
        if absent or (name in values and OmegaConf.is_missing(node, name)):
            raise ConfigError(f"{group}.{name} has no value: give {group}.{name}=…")
    if not dataclasses.is_dataclass(target):
        return None
    return option(**typed_values(group, target, node))


def typed_values(group: str, target: Any, node: DictConfig) -> dict[str, Any]:
    """The values of a group, converted to the types of the dataclass's fields.

    Raises:
        ConfigError: A value of another type.
    """
    types = typing.get_type_hints(target)
    schema = dataclasses.make_dataclass(
        group,
        [(field.name, types[field.name], dataclasses.field(default=MISSING)) for field in dataclasses.fields(target)],
    )
    try:
        plain = OmegaConf.to_container(node, resolve=True)
        assert isinstance(plain, dict)
        bare = {key: value for key, value in plain.items() if key != "_target_"}
        typed = OmegaConf.merge(OmegaConf.structured(schema), bare)
        values = OmegaConf.to_container(typed)
    except OmegaConfBaseException as error:
        value = OmegaConf.select(node, str(error.full_key))
        raise ConfigError(wrong_value(f"{group}.{error.full_key}", str(value), str(error))) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def unknown_key(key: str, known: list[str]) -> str:
    """One sentence for a key that is not there, with the nearest that is."""
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; nearest: {near[0]}" if near else ""
    if len(known) <= 12:
        hint += f" (valid: {', '.join(known) or 'none'})"
    return f"unknown key {key}{hint}"


def wrong_value(key: str, value: str, reason: str) -> str:
    """One sentence for a value of the wrong type, from the value and OmegaConf's reason."""
    key = key.lstrip("+~")
    kind = re.search(r"could not be converted to (\w+)", reason)
    if kind:
        return f"{key} must be {KINDS.get(kind[1], kind[1])}, got {value or 'nothing'}"
    if "optional" in reason.lower():
        return f"{key} needs a value, got null"
    return f"{key}={value}: {reason.strip().splitlines()[0]}"


def start_advice(cfg: DictConfig) -> list[str]:
    """The warnings for a composed configuration, without building anything."""
    reward = check_option("reward", cfg.reward)
    scale, shift = cfg.reward_processor.scale, cfg.reward_processor.shift
    declared = reward.reward_range if "reward_range" in dir(reward) else cfg.reward.get("reward_range")
    bounds = None if declared is None else (float(declared[0]), float(declared[1]))
    return advice(settings(cfg), bounds, lambda value: value * scale + shift)
