"""A program of two agents, scored level by level: helper, main function, syntax, tests, cooperation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from marl_runner.code_tasks import REQUIRED_FIELDS, Judgement, judge, row_problem
from marl_runner.rewards.registry import register_reward
from marl_runner.sandbox.jobs import Limits
from marl_runner.sandbox.pool import Sandbox, shared_sandbox

HELPER_DEFINED = 0.4
MAIN_DEFINED = 0.6
PARSES = 0.5
ALL_TESTS = 1.0
CALLS_HELPER = 0.5
MORE_THAN_A_WRAPPER = 1.0
IGNORES_HELPER = -0.5


@register_reward("code_pair")
@dataclass(frozen=True)
class CodePair:
    """The sum of five components, in [0, 4]; see TASKS of the public code-generation experiments.

    - `aux`: 0.4 if the first agent defines the function `aux`, with a return.
    - `main`: 0.6 if the last agent defines the entry point, with a return; else nothing more is looked at.
    - `syntax`: 0.5 if both together parse; else nothing more is looked at.
    - `tests`: passed / all tests, each under a time limit, run in the sandbox.
    - `cooperation`, if a test passed and the entry point calls `aux`: 0.5; 1.0 more unless it only passes on what
      `aux` returns; 0.5 less if it never uses that.

    An `aux` that is not defined is left out of the program. What counts as a test is told in `sandbox/suite.py`.

    Attributes:
        sandbox: "auto" isolates programs as far as this machine allows, "require" refuses to run with less than all.
        limits: What a program may use, see `sandbox.Limits`.
        sandbox_workers: Programs that are run at the same time, >= 1.

    Raises:
        ConfigError: A value is out of its range.
    """

    sandbox: str
    limits: dict[str, float]
    sandbox_workers: int

    reward_range: ClassVar[tuple[float, float]] = (0.0, 4.0)
    required_fields: ClassVar[tuple[str, ...]] = REQUIRED_FIELDS
    min_agents: ClassVar[int] = 2

    def __post_init__(self) -> None:
        self._shared()

    def start(self) -> None:
        """Starts the sandbox, and says in one line what it isolates.

        Raises:
            ConfigError: Isolation is required and not to be had.
        """
        self._shared().start()

    def check_row(self, row: Mapping[str, Any]) -> str:
        """What makes a row no code task; "" if nothing does."""
        return row_problem(row)

    def __call__(self, helper: list[str], main: list[str], *, batch_item: dict[str, Any]) -> list[dict[str, float]]:
        """The components of each joint action.

        Args:
            helper: The first agent's text in each.
            main: The last agent's text in each.
            batch_item: The task: `prompt`, `entry_point`, `test`.
        """
        judgements = [judge(*texts, batch_item, self._shared()) for texts in zip(helper, main, strict=True)]
        return [components(judgement) for judgement in judgements]

    def _shared(self) -> Sandbox:
        return shared_sandbox(Limits.of(self.limits), self.sandbox, self.sandbox_workers)


def components(judgement: Judgement) -> dict[str, float]:
    """The reward of a program, by components."""
    outcome, use = judgement.outcome, judgement.use
    cooperation = 0.0
    if outcome is not None and use is not None and outcome.passed and use.calls:
        cooperation += CALLS_HELPER
        cooperation += 0.0 if use.is_wrapper else MORE_THAN_A_WRAPPER
        cooperation += IGNORES_HELPER if use.ignores_value else 0.0
    return {
        "aux": HELPER_DEFINED if judgement.helper_defined else 0.0,
        "main": MAIN_DEFINED if judgement.main_defined else 0.0,
        "syntax": PARSES if outcome is not None else 0.0,
        "tests": ALL_TESTS * outcome.passed / len(outcome.tests) if outcome is not None else 0.0,
        "cooperation": cooperation,
    }
