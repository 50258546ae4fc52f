"""The trainer's side of the sandbox: worker processes, and the outcomes of jobs they have done."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import json
import logging
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from marl_runner.errors import ConfigError
from marl_runner.sandbox.frames import TooLongError, WatchedPipe
from marl_runner.sandbox.isolation import Isolation, find_isolation
from marl_runner.sandbox.jobs import Job, Limits, Outcome, TestOutcome
from marl_runner.sandbox.program import PACKAGE, environment, start_of
from marl_runner.sandbox.suite import parse_suite

log = logging.getLogger(__name__)

MOST_KEPT = 4096
"""Outcomes that are kept, so that what a reward has run is not run again for a transition."""
START_S = 60.0
"""Seconds in which a worker must be ready."""
SLACK_S = 15.0
"""Seconds after a job's own limit in which its worker must answer before it is killed."""
MOST_OF_AN_OUTCOME = 2**24
"""Bytes of an outcome."""


class Worker:
    """One worker process.

    Args:
        limits: Of each program.
        layers: What confines a program.

    Raises:
        RuntimeError: It does not start.
    """

    def __init__(self, limits: Limits, layers: Sequence[str]) -> None:
        scratch = tempfile.gettempdir()
        told = {"limits": dataclasses.asdict(limits), "layers": layers, "scratch": scratch}
        # A session of its own: Ctrl-C in a terminal is for the trainer, which then closes the pipe.
        self._process = subprocess.Popen(
            [sys.executable, "-s", "-P", "-c", start_of("worker"), PACKAGE, json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch,
            env=environment(Path(scratch)),
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        reading, writing = self._process.stdout.fileno(), self._process.stdin.fileno()
        self._pipe = WatchedPipe(reading, writing, MOST_OF_AN_OUTCOME, lambda: None)
        if self._pipe.receive(time.monotonic() + START_S) is None:
            raise RuntimeError(f"a worker of the sandbox did not start (exit code {self._process.wait()})")

    def __call__(self, job: Job, deadline: float) -> Outcome | None:
        """The outcome of a job, or None if the worker had to be given up.

        Args:
            job: Program and tests.
            deadline: In seconds of `time.monotonic`.

        Raises:
            ValueError: The tests themselves are wrong.
        """
        try:
            self._pipe.send(json.dumps(dataclasses.asdict(job)).encode("ascii"), deadline)
            data = self._pipe.receive(deadline)
        except (TimeoutError, TooLongError, BrokenPipeError):
            return None
        if data is None:
            return None
        answer = json.loads(data)
        if "error" in answer:
            raise ValueError(f"the tests of {job.entry_point} cannot be run: {answer['error']}")
        return Outcome(tuple(TestOutcome(**test) for test in answer["tests"]), answer["elapsed_s"])

    def close(self) -> None:
        """Closes the pipe, on which the worker ends with all that it has started; kills it if it does not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Sandbox:
    """Runs programs against tests in worker processes; any number of threads may call it.

    Args:
        limits: What each program may use.
        isolation: "auto" uses what the kernel has, "require" refuses to run without all of it.
        num_workers: Programs that run at the same time, >= 1.

    Raises:
        ConfigError: A value is out of its range.
    """

    def __init__(self, limits: Limits, isolation: str = "auto", num_workers: int = 1) -> None:
        if isolation not in ("auto", "require"):
            raise ConfigError(f"sandbox must be auto or require, got {isolation!r}")
        if num_workers < 1:
            raise ConfigError(f"the sandbox needs at least 1 worker, got {num_workers}")
        self.limits = limits
        self._isolation = isolation
        self._num_workers = num_workers
        self._idle: queue.Queue[Worker | None] = queue.Queue()
        self._lock = threading.Lock()
        self._kept: OrderedDict[Job, Outcome] = OrderedDict()
        self.isolation: Isolation | None = None

    def start(self) -> None:
        """Starts the workers, if they do not run, and says in one line what isolates a program.

        Raises:
            ConfigError: Isolation is required and not to be had.
        """
        with self._lock:
            if self.isolation is not None:
                return
            self.isolation = find_isolation(self.limits, required=self._isolation == "require")
            log.log(logging.INFO if self.isolation.is_complete else logging.WARNING, "%s", self.isolation)
            for _ in range(self._num_workers):
                self._idle.put(self._worker())
            atexit.register(self.close)

    def __call__(self, job: Job) -> Outcome:
        """The outcome of a job, from memory if it was done before.

        A worker that does not answer is killed and replaced; all tests have then failed.

        Raises:
            SyntaxError, ValueError: The tests themselves are wrong.
        """
        self.start()
        with self._lock:
            if job in self._kept:
                self._kept.move_to_end(job)
                return self._kept[job]
        outcome = self._done(job)
        with self._lock:
            self._kept[job] = outcome
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        return outcome

    def close(self) -> None:
        """Ends the workers, and with them all that they have started."""
        with self._lock:
            while not self._idle.empty():
                worker = self._idle.get()
                if worker is not None:
                    worker.close()
            self.isolation = None
            atexit.unregister(self.close)

    def _worker(self) -> Worker:
        assert self.isolation is not None
        return Worker(self.limits, self.isolation.layers)

    def _done(self, job: Job) -> Outcome:
        suite = parse_suite(job.test)
        started = time.monotonic()
        # One that was lost is replaced when it is needed: not now, when the trainer may be about to end.
        worker = self._idle.get() or self._worker()
        outcome = None
        try:
            outcome = worker(job, time.monotonic() + self.limits.wall_s + SLACK_S)
        finally:
            if outcome is None:
                worker.close()
            self._idle.put(worker if outcome is not None else None)
        if outcome is not None:
            return outcome
        lost = "the worker that ran it was lost"
        tests = [TestOutcome(each.source, False, "exit", lost) for each in suite.statements if each.is_test]
        return Outcome(tuple(tests), time.monotonic() - started)


@functools.cache
def shared_sandbox(limits: Limits, isolation: str, num_workers: int) -> Sandbox:
    """The one sandbox of a process with these settings: a reward and a transition do not run a program twice."""
    return Sandbox(limits, isolation, num_workers)
