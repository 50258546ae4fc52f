"""Runs tests against a program: here the tests, over there the program, and between them plain values."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from marl_runner.sandbox.endings import LostError, RaisedError, RefusedError
from marl_runner.sandbox.jobs import Job, Limits, Outcome, TestOutcome
from marl_runner.sandbox.processes import reap_orphans
from marl_runner.sandbox.program import Program
from marl_runner.sandbox.suite import Statement, parse_suite

MOST_OF_A_TEST = 500
"""Characters of a test's source in its outcome."""
MOST_OF_A_VALUE = 200
"""Characters of a value in a message."""


class Checker:
    """Checks programs one after the other.

    Args:
        limits: What each program may use.
        layers: What confines it.
        scratch: Folder for its throw-away working folder.
        watch: Called every few milliseconds while a program is waited for; may raise.
    """

    def __init__(self, limits: Limits, layers: Sequence[str], scratch: Path, watch: Callable[[], None]) -> None:
        self._limits = limits
        self._layers = layers
        self._scratch = scratch
        self._watch = watch

    def __call__(self, job: Job) -> Outcome:
        """The outcome of every test of a job.

        A program that is lost in one test is started again for the next, as long as there is time; one whose source
        already fails is not.
        """
        started = time.monotonic()
        suite = parse_suite(job.test)
        tested = Tested(job, self._start, started + self._limits.wall_s, self._limits.test_s)
        namespace: dict[str, Any] = {"__name__": "tests"}
        random.seed(0)  # some tests draw their cases
        outcomes: list[TestOutcome] = []
        try:
            exec(compile(job.preamble, "<preamble>", "exec"), namespace)
            namespace.update(dict.fromkeys((job.entry_point, *suite.names), tested))
            for statement in suite.statements:
                outcome = self._run(statement, namespace, tested)
                if statement.is_test:
                    outcomes.append(outcome)
        finally:
            tested.close()
        return Outcome(tuple(outcomes), time.monotonic() - started)

    def _start(self, source: str, deadline: float) -> Program:
        return Program(source, self._limits, self._layers, self._scratch, self._watch, deadline)

    def _run(self, statement: Statement, namespace: dict[str, Any], tested: Tested) -> TestOutcome:
        """One statement, under its time limit."""
        source = statement.source[:MOST_OF_A_TEST]
        try:
            tested.begin()
            with alarm(tested.deadline + GRACE_S - time.monotonic()):
                exec(statement.code, namespace)
        except LostError as lost:
            return TestOutcome(source, False, lost.kind, tested.told(str(lost)))
        except AssertionError as error:
            return TestOutcome(source, False, "assertion", tested.told(str(error)))
        except Exception as error:  # noqa: BLE001  of the program or of the test, and either fails it
            return TestOutcome(source, False, kind_of(error), tested.told(named(error)))
        return TestOutcome(source, True)


GRACE_S = 0.25
"""Seconds after a test's deadline, at which its program is killed, until the test itself is interrupted."""


class Tested:
    """The tested function as the tests see it.

    Args:
        job: Program and entry point.
        start: Makes a program process of a source, before a deadline.
        deadline: Of the whole job, in seconds of `time.monotonic`.
        test_s: Seconds of one test.

    Attributes:
        deadline: Of the running test.
        last_call: What was called last and what it returned, for messages.
    """

    def __init__(self, job: Job, start: Callable[[str, float], Program], deadline: float, test_s: float) -> None:
        self._job = job
        self._start = start
        self._job_deadline = deadline
        self._test_s = test_s
        self._program: Program | None = None
        self._broken: Exception | LostError | None = None
        self.deadline = deadline
        self.last_call = ""

    def begin(self) -> None:
        """Begins a test: sets its deadline, and starts the program if it does not run.

        Raises:
            LostError: No time is left.
            Exception: The source itself fails; the same at every test.
        """
        self.last_call = ""
        if self._broken is not None:
            raise self._broken
        now = time.monotonic()
        if now >= self._job_deadline:
            raise LostError("timeout", "no time is left for this test")
        self.deadline = min(now + self._test_s, self._job_deadline)
        if self._program is not None and self._program.alive:
            return
        reap_orphans()
        try:
            self._program = self._start(self._job.program, self.deadline)
        except RefusedError:
            raise
        except (Exception, LostError) as error:
            self._broken = error
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the program's function returns for plain arguments."""
        shown = ", ".join([repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()])
        call = f"{self._job.entry_point}({shown[:MOST_OF_A_VALUE]})"
        self.last_call = call
        assert self._program is not None
        if not self._program.alive:
            raise LostError("exit", "the program has ended")
        answer = self._program.call(self._job.entry_point, args, kwargs, self.deadline)
        self.last_call = f"{call} returned {repr(answer)[:MOST_OF_A_VALUE]}"
        return answer

    def told(self, text: str) -> str:
        """What went wrong, in one line, after what was called last."""
        parts = [self.last_call, *text.splitlines()[:1]]
        return ": ".join(part for part in parts if part)

    def close(self) -> None:
        """Kills the program, and everything that it has started."""
        if self._program is not None and self._program.alive:
            self._program.close()
        reap_orphans()


def kind_of(error: Exception) -> str:
    """Kind of a failure by its exception."""
    kinds = {"MemoryError": "memory", "SyntaxError": "syntax", "IndentationError": "syntax", "TabError": "syntax"}
    return kinds.get(type(error).__name__, "exception")


def named(error: Exception) -> str:
    """An exception in one line."""
    name = error.kind if isinstance(error, RaisedError) else type(error).__name__
    return f"{name}: {error}"


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Interrupts what runs after so many seconds with LostError: a test that loops over what a program returned."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise LostError("timeout", "the test itself took too long")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, GRACE_S))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
