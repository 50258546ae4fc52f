"""The names and types of the run's configuration, and where its YAML files are. Never imports torch."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from marl_runner.errors import ConfigError
from marl_runner.role_prompts import role_prompts
from marl_runner.settings import MAGRPOConfig

OPTION_GROUPS = ("agents", "advantage_mode", "joint_mode", "reward", "dataset", "transition", "tracking")
SET_ELSEWHERE = {
    "advantage_mode": "advantage_mode",
    "joint_mode": "joint_mode",
    "num_agents": "agents.num_agents",
    "seed": "seed",
    "output_dir": "hydra.run.dir",
    "reward_num_workers": "reward.num_workers",
}
"""Fields of MAGRPOConfig that the command line sets outside the trainer group, and where."""


def trainer_schema() -> type[Any]:
    """MAGRPOConfig as a plain dataclass that OmegaConf can fill, without the fields set elsewhere."""
    kinds = typing.get_type_hints(MAGRPOConfig)
    fields = [
        # OmegaConf would read any number as a bool; MAGRPOConfig itself refuses it.
        (field.name, Any if kinds[field.name] is bool else kinds[field.name], dataclasses.field(default=field.default))
        for field in dataclasses.fields(MAGRPOConfig)
        if field.name not in SET_ELSEWHERE
    ]
    return dataclasses.make_dataclass("trainer", fields)


TrainerSchema = trainer_schema()


@dataclass
class RewardProcessorSchema:
    """Every reward becomes reward * scale + shift."""

    scale: float = MISSING
    shift: float = MISSING


@dataclass
class RunSchema:
    """Keys of `conf/config.yaml`; the groups' own keys are checked against their classes."""

    seed: int = MISSING
    dry_run: Any = MISSING  # bools, checked by `check_names`: OmegaConf would read any number as one
    save_models: Any = MISSING
    reward_processor: RewardProcessorSchema = dataclasses.field(default_factory=RewardProcessorSchema)
    trainer: TrainerSchema = dataclasses.field(default_factory=TrainerSchema)  # type: ignore[valid-type]
    agents: Any = MISSING
    advantage_mode: Any = MISSING
    joint_mode: Any = MISSING
    reward: Any = MISSING
    dataset: Any = MISSING
    transition: Any = MISSING
    tracking: Any = MISSING


def register_schema() -> None:
    """Makes the schema known to Hydra under the name that `conf/config.yaml` opens with.

    Also two resolvers: `${folder_or:FOLDER,OTHER}` is FOLDER where it exists, else OTHER;
    `${role_prompts:TASK,${agents.chat_template}}` is the list of a public task's role prompts.
    """
    ConfigStore.instance().store(name="run_schema", node=RunSchema)
    OmegaConf.register_new_resolver(
        "folder_or", lambda folder, other: folder if Path(folder).expanduser().is_dir() else other, replace=True
    )
    OmegaConf.register_new_resolver("role_prompts", role_prompts, replace=True)


def conf_dir() -> Path:
    """The absolute folder of the YAML groups: inside an installed wheel, or at the top of the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"no conf folder beside {package}; reinstall marl-runner")


@cache
def option_keys() -> dict[str, tuple[str, ...]]:
    """Every key of the option groups (`agents.model`), with the options that have it (`pretrained`, `smollm2`)."""
    keys: dict[str, tuple[str, ...]] = {}
    for group in OPTION_GROUPS:
        for path in sorted((conf_dir() / group).glob("*.yaml")):
            for name in OmegaConf.load(path):
                if str(name) not in ("defaults", "_target_"):
                    key = f"{group}.{name!s}"
                    keys[key] = (*keys.get(key, ()), path.stem)
    return keys


def run_types() -> dict[str, Any]:
    """The annotated type of every key outside the option groups."""
    return {
        f"{prefix}{name}": kind
        for prefix, schema in (
            ("", RunSchema),
            ("trainer.", MAGRPOConfig),
            ("reward_processor.", RewardProcessorSchema),
        )
        for name, kind in typing.get_type_hints(schema).items()
        if prefix != "trainer." or name not in SET_ELSEWHERE
    }


def described(kind: Any) -> str:
    """An annotated type in words: "an integer or null"."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(described(part) for part in typing.get_args(kind))
    words = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "text",
        list: "a list [a, b]",
        dict: "a mapping {key: value}",
        types.NoneType: "null",
    }
    return words.get(typing.get_origin(kind) or kind, "a group of keys")


def entry_type(kind: Any) -> Any:
    """The type of the entries of an annotated list or mapping, optional or not."""
    for part in (kind, *typing.get_args(kind)):
        if typing.get_origin(part) in (list, dict, tuple):
            return typing.get_args(part)[-1]
    return Any


def shown(value: Any) -> str:
    """A value as it is written on the command line, for messages."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return "nothing" if value == "" else str(value)


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
