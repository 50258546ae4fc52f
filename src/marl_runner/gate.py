"""The gate before anything is launched: a Hydra callback that checks every job of a command.

Hydra turns an exception of a callback into a warning, so the gate ends the process itself, with exit code 2.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, read_write
from omegaconf.errors import OmegaConfBaseException

from marl_runner.config import check, start_advice
from marl_runner.errors import ConfigError, MarlRunnerError
from marl_runner.explain import explain
from marl_runner.run_folder import refuse_taken
from marl_runner.schema import unknown_key

CONFIG_EXIT = 2


class Gate(Callback):
    """Checks the configuration of a run, or of every job of a sweep, before a folder is made."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """One run: its rules, and that its folder is free."""
        try:
            check_hydra(config)
            with as_job(config) as folder:
                check(config)
            refuse_taken(folder)
        except (MarlRunnerError, OmegaConfBaseException, OSError) as error:
            refuse(error)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """A sweep: the rules of every job, that all folders are free, and each warning once for all jobs."""
        folders: dict[Path, int] = {}
        warnings: dict[str, str] = {}
        try:
            check_hydra(config)
            _ = config.hydra.sweep.dir  # its `${now:…}` is fixed here, for the jobs below as for those launched
            for number, job in enumerate(sweep_configs(config)):
                with as_job(job, number) as folder:
                    check(job)
                    advice = start_advice(job)
                refuse_taken(folder)
                if folders.setdefault(folder, number) != number:
                    raise ConfigError(
                        f"jobs {folders[folder]} and {number} would share the folder {folder}: "
                        "put ${hydra.job.num} into hydra.sweep.subdir"
                    )
                # The advice about advantage modes is the same for every mode that is swept.
                warnings = {re.sub("^advantage_mode=[^ ]+", "", text): text for text in advice} | warnings
        except Exception as error:  # noqa: BLE001  whatever it is must stop the sweep, and Hydra would swallow it
            refuse(error)
        for warning in warnings.values():
            print(f"WARNING  {warning}", file=sys.stderr)


def refuse(error: Exception) -> None:
    """Prints one short message and ends the process."""
    print(f"marl-train: {explain(error, sys.argv[1:])}", file=sys.stderr)
    sys.exit(CONFIG_EXIT)


def check_hydra(config: DictConfig) -> None:
    """Refuses keys that `+hydra.key=value` added.

    Raises:
        ConfigError: Naming the nearest valid key.
    """
    valid = ["hydra.env", *(f"hydra.{field.name}" for field in dataclasses.fields(HydraConf))]
    for name in config.hydra:
        if f"hydra.{name}" not in valid:
            raise ConfigError(unknown_key(f"hydra.{name}", valid))


@contextmanager
def as_job(config: DictConfig, number: int | None = None) -> Iterator[Path]:
    """Gives `${hydra:…}` the values it will have in a job, and yields the job's folder.

    Args:
        config: A whole composed configuration, `hydra` included.
        number: The job's place in its sweep, or None for a single run.
    """
    outer = HydraConfig.instance().cfg
    try:
        if number is not None:
            with read_write(config.hydra.job):
                config.hydra.job.num, config.hydra.job.id = number, str(number)
        HydraConfig.instance().set_config(config)
        hydra = HydraConfig.get()
        folder = Path(hydra.run.dir) if number is None else Path(hydra.sweep.dir, str(hydra.sweep.subdir))
        with read_write(config.hydra.runtime):
            config.hydra.runtime.output_dir = str(folder.absolute())
        HydraConfig.instance().set_config(config)
        yield folder.absolute()
    finally:
        HydraConfig.instance().cfg = outer


def sweep_configs(config: DictConfig) -> Iterator[DictConfig]:
    """Composes every job that the overrides of a sweep spell out.

    Ranges that only a sweeper can draw from (`interval(0, 1)`) are left at their default here; such a job is
    checked again when it starts.

    Raises:
        ConfigError: A sweep over no value at all.
    """
    loader = GlobalHydra.instance().config_loader()
    lines = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    choices: dict[str, list[str]] = {}
    for override in OverridesParser.create(loader).parse_overrides([*lines, *config.hydra.overrides.task]):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values:
                raise ConfigError(f"the sweep {override.input_line} has no values, so there is nothing to run")
            choices[key] = values
    for overrides in itertools.product(*choices.values()):
        yield loader.load_sweep_config(config, list(overrides))
