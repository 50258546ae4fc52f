"""`marl-train`: compose → check → heavy imports → build → train → exit code.

Exit codes: 0 done; 1 the run failed; 2 the configuration or the data is wrong and nothing was trained;
128 + signal number when stopped by a signal.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from marl_runner.config import check
from marl_runner.errors import ConfigError, DataError, MarlRunnerError, RunFolderError
from marl_runner.explain import explain
from marl_runner.schema import conf_dir, register_schema
from marl_runner.stopping import REQUEST, SIGNALS, Stopped

FAILED_EXIT = 1
CONFIG_EXIT = 2
SIGNAL_EXIT = 128
"""Plus the number of the signal."""
FULL_ERROR = "HYDRA_FULL_ERROR"

advice_log = logging.getLogger("marl_runner.advice")


class Failed(BaseException):
    """A single run ended by `error`; not an Exception, to which Hydra would add a line of its own."""

    def __init__(self, error: MarlRunnerError) -> None:
        super().__init__(str(error))
        self.error = error


def main() -> NoReturn:
    """Entry point of the console script; ends the process with the exit code."""
    code = command()
    if code > SIGNAL_EXIT:
        # What a thread is still doing, in a user's reward above all, is not waited for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def command() -> int:
    """Runs the command line and returns the exit code; HYDRA_FULL_ERROR=1 keeps the whole trace."""
    register_schema()
    wants_trace = os.environ.get(FULL_ERROR) == "1"
    with process_state():
        try:
            hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")(task)()
        except Stopped as stopped:
            print(f"marl-train: stopped by {stopped}", file=sys.stderr)
            return stopped.exit_code
        except Failed as failed:
            failure: Exception = failed.error
        except (MarlRunnerError, HydraException, OmegaConfBaseException) as error:
            failure = error
        except BrokenPipeError:
            # Whoever read the output has gone, as in `marl-train --help | head`; nobody is left to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return SIGNAL_EXIT + signal.SIGPIPE
        except (ValueError, OSError, YAMLError) as error:
            # What Hydra lets through of a wrong argument or an unreadable file; in a run they are a fault.
            if began(error):
                raise
            failure = error
        else:
            return 0
    if wants_trace:
        raise failure
    print(f"marl-train: {explain(failure, sys.argv[1:])}", file=sys.stderr)
    refused = isinstance(failure, (ConfigError, DataError, RunFolderError))
    nothing_trained = refused or not isinstance(failure, MarlRunnerError)
    return CONFIG_EXIT if nothing_trained else FAILED_EXIT


@contextmanager
def process_state() -> Iterator[None]:
    """Sets what the whole process shares while a command runs, and puts it back."""
    REQUEST.number = None
    handlers = {number: signal.signal(number, stop) for number in SIGNALS}
    full_error = os.environ.get(FULL_ERROR)
    # With the variable set Hydra raises instead of printing a page and exiting with 1, whatever went wrong.
    os.environ[FULL_ERROR] = "1"
    level = advice_log.level
    try:
        yield
    finally:
        advice_log.setLevel(level)
        if full_error is None:
            del os.environ[FULL_ERROR]
        else:
            os.environ[FULL_ERROR] = full_error
        for number, handler in handlers.items():
            signal.signal(number, handler)


def stop(number: int, frame: FrameType | None) -> None:
    """Signal handler; a second signal ends the process at once."""
    REQUEST.receive(number)


def began(error: BaseException) -> bool:
    """Whether an error comes from inside a run, not from composing its configuration."""
    return any(frame.f_code is task.__code__ for frame, _ in traceback.walk_tb(error.__traceback__))


def task(cfg: DictConfig) -> float | None:
    """One run, or one job of a sweep: returns the objective, for sweepers that optimise it."""
    hydra_config = HydraConfig.get()
    is_sweep = hydra_config.mode == RunMode.MULTIRUN
    try:
        check(cfg)
        if cfg.dry_run:
            from marl_runner.plan import print_plan

            print_plan(cfg)
            return None
        if is_sweep:
            # The gate has given every warning of a sweep once, before its first job.
            advice_log.setLevel(logging.ERROR)
        from marl_runner.run import run

        return run(cfg, Path(hydra_config.runtime.output_dir))
    except MarlRunnerError as error:
        if is_sweep:
            raise  # to Hydra, which goes on with the other jobs
        raise Failed(error) from error
    except SystemExit as error:
        # Left alone, exit(0) in a user's function would end a half-trained run with the code of a finished one.
        called = MarlRunnerError(f"something in the run called exit({error.code})")
        raise called if is_sweep else Failed(called) from error
