"""What a run folder says of its run, and what of it an evaluation may change. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from marl_runner.config import check
from marl_runner.errors import ConfigError
from marl_runner.explain import pasteable
from marl_runner.schema import OPTION_GROUPS, RunSchema, conf_dir, register_schema

CONFIG = "config.yaml"
NOT_TAKEN = {
    "seed": "give the seed of the evaluation as --seed N",
    "agents": "the agents are those of the run; change a key of theirs (agents.KEY=…), or use --swap or --base",
    **dict.fromkeys(("experiment", "debug"), "change single keys, or choose another dataset, reward or transition"),
    **dict.fromkeys(
        ("advantage_mode", "joint_mode", "tracking", "dry_run", "save_models", "hydra"),
        "it plays no part in an evaluation",
    ),
}
"""What `marl-train` takes and an evaluation does not, and why."""


def saved_config(folder: Path, overrides: Sequence[str] = ()) -> DictConfig:
    """The checked configuration of the run in `folder`, with changes typed as for `marl-train`.

    Args:
        folder: The run folder.
        overrides: `KEY=VALUE` for a key that exists, or `dataset=…`, `reward=…`, `transition=…` for another option,
            whose own keys then have its defaults.

    Raises:
        ConfigError, HydraException, OmegaConfBaseException, OSError, YAMLError: What `explain` makes one sentence of.
    """
    register_schema()
    saved = saved_yaml(folder)
    chosen = [override for override in parsed(overrides) if is_choice(override)]
    if chosen:
        options = composed("config", [str(override.input_line) for override in chosen])
        for override in chosen:
            group = str(override.key_or_group)
            saved[group] = OmegaConf.to_container(options[group])
    name = "saved_run"
    ConfigStore.instance().store(name=name, node=OmegaConf.merge(OmegaConf.structured(RunSchema), saved))
    lines = [str(override.input_line) for override in parsed(overrides) if not is_choice(override)]
    cfg = composed(name, lines)
    check(cfg)
    return cfg


def saved_yaml(folder: Path) -> DictConfig:
    """A run's config.yaml as it is.

    Raises:
        ConfigError: The folder is not that of a run.
    """
    if not (folder / CONFIG).is_file():
        hint = f"a sweep: name one of its jobs, as {folder / '0'}" if (folder / "multirun.yaml").is_file() else None
        raise ConfigError(f"{folder} is {hint or f'no run folder: it has no {CONFIG}; name the folder of a run'}")
    saved = OmegaConf.load(folder / CONFIG)
    if not isinstance(saved, DictConfig):
        raise ConfigError(f"{folder / CONFIG} is not the configuration of a run")
    return saved


def parsed(overrides: Sequence[str]) -> list[Override]:
    """The overrides, read.

    Raises:
        HydraException: One cannot be read.
        ConfigError: One is a sweep, or changes what plays no part in an evaluation.
    """
    read = OverridesParser.create().parse_overrides(list(overrides))
    for override in read:
        key = str(override.key_or_group)
        top = key.partition(".")[0]
        if top in NOT_TAKEN and not key.startswith("agents."):
            raise ConfigError(f"marl-eval takes no {override.input_line}: {NOT_TAKEN[top]}")
        if override.is_sweep_override():
            value = str(override.input_line).partition("=")[2]
            raise ConfigError(f"{override.input_line} is several values; as one text: {pasteable(key, value)}")
    return read


def is_choice(override: Override) -> bool:
    """Whether an override chooses another option of a group."""
    return str(override.key_or_group) in OPTION_GROUPS and not override.is_delete()


def composed(name: str, overrides: list[str]) -> DictConfig:
    """What Hydra makes of a configuration and overrides."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return compose(name, overrides)
