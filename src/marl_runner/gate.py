"""The gate before anything is launched: a Hydra callback that checks every job of a command.

Hydra turns an exception of a callback into a warning, so the gate ends the process itself, with exit code 2.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from marl_runner.config import check, start_advice
from marl_runner.errors import ConfigError, MarlRunnerError
from marl_runner.explain import explain
from marl_runner.run_folder import refuse_finished

CONFIG_EXIT = 2


class Gate(Callback):
    """Checks the configuration of a run, or of every job of a sweep, before a folder is made."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """One run: its rules, and that its folder holds no finished run."""
        try:
            check(config)
            if not config.dry_run:
                refuse_finished(Path(config.hydra.run.dir))
        except (MarlRunnerError, OmegaConfBaseException) as error:
            refuse(error)

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """A sweep: the rules of every job, and each warning once for all of them."""
        warnings: dict[str, None] = {}
        try:
            for job in sweep_configs(config):
                check(job)
                warnings.update(dict.fromkeys(start_advice(job)))
        except Exception as error:  # noqa: BLE001  whatever it is must stop the sweep, and Hydra would swallow it
            refuse(error)
        for warning in warnings:
            print(f"WARNING  {warning}", file=sys.stderr)


def refuse(error: Exception) -> None:
    """Prints one short message and ends the process."""
    print(f"marl-train: {explain(error)}", file=sys.stderr)
    sys.exit(CONFIG_EXIT)


def sweep_configs(config: DictConfig) -> Iterator[DictConfig]:
    """Composes every job that the overrides of a sweep spell out.

    Ranges that only a sweeper can draw from (`interval(0, 1)`) are left at their default here; such a job is
    checked again when it starts.

    Raises:
        ConfigError: A sweep over no value at all.
    """
    loader = GlobalHydra.instance().config_loader()
    lines = [f"{key}={value}" for key, value in (config.hydra.sweeper.get("params") or {}).items()]
    choices = []
    for override in OverridesParser.create(loader).parse_overrides([*lines, *config.hydra.overrides.task]):
        key = override.get_key_element()
        if not override.is_sweep_override():
            choices.append([f"{key}={override.get_value_element_as_str()}"])
        elif override.is_discrete_sweep():
            values = [f"{key}={value}" for value in override.sweep_string_iterator()]
            if not values:
                raise ConfigError(f"the sweep {override.input_line} has no values, so there is nothing to run")
            choices.append(values)
    for overrides in itertools.product(*choices):
        yield loader.load_sweep_config(config, list(overrides))
