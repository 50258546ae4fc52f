"""The rules of a composed configuration: names, types, ranges, and relations between groups. Never imports torch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pydoc import ErrorDuringImport, locate
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_runner.advice import advice, mode_name
from marl_runner.errors import ConfigError, MarlRunnerError
from marl_runner.hooks import check_source, path_hint
from marl_runner.schema import (
    OPTION_GROUPS,
    SET_ELSEWHERE,
    RewardProcessorSchema,
    RunSchema,
    TrainerSchema,
    described,
    entry_type,
    option_keys,
    shown,
)
from marl_runner.settings import ALGORITHMS, MAGRPOConfig
from marl_runner.types import DeclaresRange, DeclaresTeam

INSTANTIATE_KEYS = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
"""Keys of a group that are read by hydra.utils.instantiate; the others are the option's own."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
    if config.num_turns > 1 and option_name(cfg.transition) == "no_transition":
        raise ConfigError(
            f"trainer.num_turns={config.num_turns} needs a transition: add transition=revise or transition=python"
        )
    if config.num_turns == 1 and option_name(cfg.transition) != "no_transition":
        raise ConfigError("a transition is chosen, but trainer.num_turns=1 never uses it: set trainer.num_turns=2")
    if isinstance(reward, DeclaresTeam) and config.num_agents < reward.min_agents:
        raise ConfigError(
            f"reward {option_name(cfg.reward)} needs agents.num_agents >= {reward.min_agents}, got {config.num_agents}"
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
        )
    except ConfigError as error:
        field = str(error).split()[0].split("=")[0]
        prefix = "" if field not in named else "trainer."
        raise ConfigError(f"{prefix}{error}") from error


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


def check_option(group: str, node: Any) -> Any:
    """Checks one group's keys and types against the class or function it names.

    Returns:
        The option itself where it is a dataclass, whose constructor checks the ranges; None for any other,
        which may import the user's code and is made when the run is built.

    Raises:
        ConfigError: The group names no class, the class cannot be imported, or a key or type is wrong.
    """
    target = option_target(group, node)
    values = typed_values(group, target, node)
    holds_others = any("_target_" in value for value in values.values() if isinstance(value, dict))
    if dataclasses.is_dataclass(target) and not holds_others and not node.get("_partial_"):
        return constructed(group, target, values)
    return None


def constructed(group: str, target: Any, values: Mapping[str, Any]) -> Any:
    """What the option's class makes of its values.

    Raises:
        ConfigError: The constructor refuses a value.
    """
    try:
        return target(**values)
    except MarlRunnerError:
        raise
    except Exception as error:
        raise ConfigError(f"{group}: {target.__qualname__} refuses these values: {error}") from error


def option_target(group: str, node: Any) -> Any:
    """The class or function that a group names.

    Raises:
        ConfigError: It names none, or one that cannot be imported or called.
    """
    if not OmegaConf.is_dict(node) or not isinstance(node.get("_target_"), str):
        raise ConfigError(f"{group} names no class: choose an option ({group}=…) or give {group}._target_")
    try:
        target = locate(node._target_)
    except ErrorDuringImport as error:
        raise ConfigError(f"{group}._target_={node._target_}: {error}") from error
    if target is None:
        hint = path_hint(node._target_)
        raise ConfigError(f"{group}._target_={node._target_}: there is no such class or function{hint}")
    if not callable(target):
        raise ConfigError(f"{group}._target_={node._target_} is neither a class nor a function")
    return target


def typed_values(group: str, target: Any, node: DictConfig) -> dict[str, Any]:
    """The option's own values in a group, converted to the annotated types of what `target` takes.

    Raises:
        ConfigError: A key that `target` does not take, one that it needs, or a value of another type.
    """
    parameters = parameters_of(target)
    named = {name: parameter for name, parameter in parameters.items() if parameter.kind not in VARIADIC}
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    keys = [str(key) for key in node if key not in INSTANTIATE_KEYS]
    for key in keys:
        if key not in named and not takes_all:
            raise ConfigError(unknown_key(f"{group}.{key}", [f"{group}.{name}" for name in named]))
    needed = [name for name, parameter in named.items() if parameter.default is inspect.Parameter.empty]
    for name in keys if node.get("_partial_") or "_args_" in node else [*keys, *needed]:
        if name not in keys or OmegaConf.is_missing(node, name):
            raise ConfigError(f"{group}.{name} has no value: give {group}.{name}=…")
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    kinds = {name: parameter.annotation for name, parameter in named.items()}
    return {key: typed(f"{group}.{key}", plain[key], kinds.get(key, Any)) for key in keys}


def parameters_of(target: Any) -> Mapping[str, inspect.Parameter]:
    """What a class or function takes, with annotations as types; as Any where they cannot be read."""
    try:
        return inspect.signature(target, eval_str=True).parameters
    except NameError:
        # Names imported for the type checker only.
        unread = inspect.signature(target).parameters
        return {name: parameter.replace(annotation=Any) for name, parameter in unread.items()}


def typed(key: str, value: Any, kind: Any) -> Any:
    """A value converted to an annotated type; as it is where OmegaConf does not know the type (Literal, Callable).

    Raises:
        ConfigError: The value is of another type; naming the entry of a list or mapping that is.
    """
    try:
        slot = OmegaConf.structured(
            dataclasses.make_dataclass("Slot", [("value", kind, dataclasses.field(default=MISSING))])
        )
    except OmegaConfBaseException:
        return value
    if kind is bool and not isinstance(value, (bool, str)):
        raise ConfigError(wrong_value(key, shown(value), bool))
    try:
        slot.value = value
    except OmegaConfBaseException as error:
        place = str(error.full_key).removeprefix("value")
        wrong = value if not place else OmegaConf.select(OmegaConf.create({"value": value}), str(error.full_key))
        raise ConfigError(wrong_value(f"{key}{place}", shown(wrong), entry_type(kind) if place else kind)) from error
    converted = OmegaConf.to_container(slot)
    assert isinstance(converted, dict)
    return converted["value"]


def unknown_key(key: str, known: Sequence[str]) -> str:
    """One sentence for a key that is not there: where it belongs, or the nearest that is there."""
    group, _, name = key.partition(".")
    if group == "trainer" and name in SET_ELSEWHERE:
        return f"trainer.{name} is set as {SET_ELSEWHERE[name]}=…"
    owners = option_keys().get(key, ())
    if owners:
        return f"{key} belongs to {group}={' or '.join(owners)}: add {group}={owners[0]}"
    near = get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f"; nearest: {near[0]}" if near else ""
    if len(known) <= 12:
        hint += f" (valid: {', '.join(known) or 'none'})"
    return f"unknown key {key}{hint}"


def wrong_value(key: str, value: str, kind: Any) -> str:
    """One sentence for a value of another type than the key's."""
    return f"{key} must be {described(kind)}, got {value}"


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
