"""One config group, checked against the class or function it names. Never imports torch."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from pydoc import ErrorDuringImport, locate
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marl_runner.errors import ConfigError, MarlRunnerError
from marl_runner.hooks import path_hint
from marl_runner.schema import entry_type, shown, unknown_key, wrong_value

INSTANTIATE_KEYS = ("_target_", "_partial_", "_args_", "_convert_", "_recursive_")
"""Keys of a group that are read by hydra.utils.instantiate; the others are the option's own."""
SETTINGS = {"reward": ("num_workers",)}
"""Keys of a group that are settings of the trainer, whatever the option is."""
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


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
    settings = SETTINGS.get(group, ())
    for name in settings:
        if name in named:
            raise ConfigError(
                f"{group}.{name} is a setting of the run: give the parameter of {node._target_} another name"
            )
    keys = [str(key) for key in node if key not in (*INSTANTIATE_KEYS, *settings)]
    for key in keys:
        if key not in named and not takes_all:
            raise ConfigError(unknown_key(f"{group}.{key}", [f"{group}.{name}" for name in (*named, *settings)]))
    needed = [name for name, parameter in named.items() if parameter.default is inspect.Parameter.empty]
    for name in keys if node.get("_partial_") or "_args_" in node else [*keys, *needed]:
        if name not in keys or OmegaConf.is_missing(node, name):
            raise ConfigError(f"{group}.{name} has no value: give {group}.{name}=…")
    plain = OmegaConf.to_container(node, resolve=True)
    assert isinstance(plain, dict)
    kinds = {name: parameter.annotation for name, parameter in named.items()}
    return {key: typed(f"{group}.{key}", without_settings(group, plain[key]), kinds.get(key, Any)) for key in keys}


def without_settings(group: str, value: Any) -> Any:
    """A value; where it holds options of the same group (`reward=weighted`), without what is a setting of the run."""
    if not isinstance(value, dict):
        return value
    dropped = SETTINGS.get(group, ()) if "_target_" in value else ()
    return {key: without_settings(group, part) for key, part in value.items() if key not in dropped}


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
