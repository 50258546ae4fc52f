"""`marl-train`: compose → check → heavy imports → build → train → exit code.

Exit codes: 0 done; 1 the run failed; 2 the configuration or the data is wrong and nothing was trained;
128 + signal number when stopped by a signal.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from marl_runner.config import check
from marl_runner.errors import ConfigError, DataError, MarlRunnerError
from marl_runner.explain import explain
from marl_runner.schema import conf_dir, register_schema

FAILED_EXIT = 1
CONFIG_EXIT = 2
FULL_ERROR = "HYDRA_FULL_ERROR"

log = logging.getLogger("marl_runner")


class Stopped(BaseException):
    """The process was told to end by a signal; not an Exception, so that no hook swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def main() -> NoReturn:
    """Entry point of the console script; ends the process with the exit code."""
    sys.exit(command())


def command() -> int:
    """Runs the command line and returns the exit code; HYDRA_FULL_ERROR=1 keeps the whole trace."""
    register_schema()
    wants_trace = os.environ.get(FULL_ERROR) == "1"
    # With the variable set Hydra raises instead of printing a page and exiting with 1, whatever went wrong.
    os.environ[FULL_ERROR] = "1"
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
    except Stopped as stopped:
        print(f"marl-train: stopped by {stopped}", file=sys.stderr)
        return stopped.exit_code
    except (ConfigError, DataError, HydraException, OmegaConfBaseException) as error:
        if wants_trace:
            raise
        print(f"marl-train: {explain(error)}", file=sys.stderr)
        return CONFIG_EXIT
    except MarlRunnerError as error:
        if wants_trace:
            raise
        print(f"marl-train: {explain(error)}", file=sys.stderr)
        return FAILED_EXIT
    return 0


def stop(number: int, frame: FrameType | None) -> None:
    """Signal handler; a second signal ends the process at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise Stopped(number)


def task(cfg: DictConfig) -> float | None:
    """One run, or one job of a sweep: returns the objective, for sweepers that optimise it."""
    check(cfg)
    if cfg.dry_run:
        from marl_runner.plan import print_plan

        print_plan(cfg)
        return None
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        # The gate has given every warning of a sweep once, before its first job.
        logging.getLogger("marl_runner.advice").setLevel(logging.ERROR)
    from marl_runner.run import run

    return run(cfg, Path(HydraConfig.get().runtime.output_dir))
