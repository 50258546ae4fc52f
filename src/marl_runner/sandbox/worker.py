"""The worker process: takes jobs from the trainer, one at a time, and answers with their outcomes.

It is a process of its own so that nothing a test does with what a program returned can touch the trainer: it may be
killed and replaced at any time.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import resource
import select
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from marl_runner.sandbox.checker import Checker
from marl_runner.sandbox.frames import read_frame, write_frame
from marl_runner.sandbox.jobs import Job, Limits

PR_SET_CHILD_SUBREAPER = 36
MEMORY = 4 * 2**30
"""Address space of a worker in bytes: a test may make much of the little that a program returns."""


class TrainerGone(BaseException):
    """Nobody waits for the outcome any more; not an Exception, which a test might catch."""


def main() -> None:
    """Says that it is ready, then answers jobs from standard input on standard output until the trainer closes it.

    Reads from the command line a JSON object: `limits`, `layers`, and `scratch`, in which it makes a folder of its own.
    """
    told = json.loads(sys.argv[2])
    jobs, outcomes = os.dup(0), os.dup(1)
    for descriptor in (0, 1):  # whatever a test reads or prints
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    hang_up = select.poll()
    hang_up.register(jobs, 0)  # a closed pipe is told in any case

    def watch() -> None:
        if hang_up.poll(0):
            raise TrainerGone

    try:
        with tempfile.TemporaryDirectory(prefix="marl-sandbox-", dir=told["scratch"]) as scratch:
            checker = Checker(Limits(**told["limits"]), told["layers"], Path(scratch), watch)
            write_frame(outcomes, b'"ready"')
            while (data := read_frame(jobs)) is not None:
                write_frame(outcomes, json.dumps(answered(checker, data)).encode("ascii"))
    except (TrainerGone, BrokenPipeError):
        return


def answered(checker: Checker, data: bytes) -> dict[str, Any]:
    """The outcome of a job, or what is wrong with its tests."""
    try:
        return dataclasses.asdict(checker(Job(**json.loads(data))))
    except Exception as error:  # noqa: BLE001  the trainer raises it
        return {"error": f"{type(error).__name__}: {error}"}
