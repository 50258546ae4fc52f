"""What goes into the sandbox and what comes out of it; everything is plain and can be written as JSON."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from difflib import get_close_matches

from marl_runner.errors import ConfigError

LEAST_MEMORY = 64
"""MiB in which an interpreter starts."""


@dataclass(frozen=True)
class Limits:
    """What one program may use; what goes beyond counts as a failed test.

    Attributes:
        wall_s: Seconds for all tests of one program together, > 0.
        test_s: Seconds for one test, > 0.
        cpu_s: CPU seconds of the program, > 0; counted in whole seconds, rounded up.
        memory_mib: Address space of the program, >= 64.
        disk_mib: Size of its working folder, and of each file in it, > 0.
        output_kib: Size of one answer to the checker, > 0. What the program prints is thrown away.
    """

    wall_s: float
    test_s: float
    cpu_s: float
    memory_mib: float
    disk_mib: float
    output_kib: float

    def __post_init__(self) -> None:
        for field in fields(self):
            name, value = field.name, vars(self)[field.name]
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value <= 0:
                raise ConfigError(f"reward.limits.{name} must be a number > 0, got {value}")
        if self.memory_mib < LEAST_MEMORY:
            raise ConfigError(f"reward.limits.memory_mib must be >= {LEAST_MEMORY}, got {self.memory_mib}")

    @classmethod
    def of(cls, values: dict[str, float]) -> Limits:
        """Limits from the mapping of a configuration.

        Raises:
            ConfigError: A name is missing or unknown, or a value is out of its range.
        """
        names = [field.name for field in fields(cls)]
        for name in values:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"; nearest: reward.limits.{near[0]}" if near else ""
                raise ConfigError(f"unknown key reward.limits.{name}{hint} (valid: {', '.join(names)})")
        missing = [name for name in names if name not in values]
        if missing:
            raise ConfigError(f"reward.limits.{missing[0]} has no value: give all of {', '.join(names)}")
        return cls(**values)


@dataclass(frozen=True)
class Job:
    """One program and its tests.

    Attributes:
        program: Source of the whole generated program.
        entry_point: Name of the function that is tested.
        test: Source of the tests: `check(candidate)` as HumanEval has it, or statements that call the entry point.
        preamble: Source that the tests may rely on beside the entry point, such as functions of the task itself.
    """

    program: str
    entry_point: str
    test: str
    preamble: str = ""


@dataclass(frozen=True)
class TestOutcome:
    """One test.

    Attributes:
        source: The statement.
        passed: Whether it ran through.
        kind: "" if passed, else what went wrong: assertion, exception, timeout, memory, output, disk, exit, syntax.
        message: What went wrong, in one line.
    """

    source: str
    passed: bool
    kind: str = ""
    message: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the checker found.

    Attributes:
        tests: One per test, in order.
        elapsed_s: Wall-clock seconds of the whole job.
    """

    tests: tuple[TestOutcome, ...]
    elapsed_s: float

    @property
    def passed(self) -> int:
        """Number of tests that passed."""
        return sum(test.passed for test in self.tests)

    @property
    def failed(self) -> int:
        """Number of tests that did not."""
        return len(self.tests) - self.passed

    @property
    def kind(self) -> str:
        """What went wrong first; "" if every test passed."""
        return next((test.kind for test in self.tests if not test.passed), "")
