"""The names and types of the run's configuration, and where its YAML files are. Never imports torch."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from marl_runner.errors import ConfigError
from marl_runner.settings import MAGRPOConfig

OPTION_GROUPS = ("agents", "advantage_mode", "joint_mode", "reward", "dataset", "transition", "tracking")
SET_ELSEWHERE = {
    "advantage_mode": "advantage_mode",
    "joint_mode": "joint_mode",
    "num_agents": "agents.num_agents",
    "seed": "seed",
}
"""Fields of MAGRPOConfig that the command line sets outside the trainer group, and where."""


def trainer_schema() -> type[Any]:
    """MAGRPOConfig as a plain dataclass that OmegaConf can fill, without the fields set elsewhere."""
    types = typing.get_type_hints(MAGRPOConfig)
    fields = [
        (field.name, types[field.name], dataclasses.field(default=field.default))
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
    dry_run: bool = MISSING
    save_models: bool = MISSING
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

    Also the resolver `${folder_or:FOLDER,OTHER}`: FOLDER where it exists, else OTHER.
    """
    ConfigStore.instance().store(name="run_schema", node=RunSchema)
    OmegaConf.register_new_resolver(
        "folder_or", lambda folder, other: folder if Path(folder).expanduser().is_dir() else other, replace=True
    )


def conf_dir() -> Path:
    """The absolute folder of the YAML groups: inside an installed wheel, or at the top of the repository."""
    package = Path(__file__).resolve().parent
    for folder in (package / "conf", package.parent.parent / "conf"):
        if (folder / "config.yaml").is_file():
            return folder
    raise ConfigError(f"no conf folder beside {package}; reinstall marl-runner")
