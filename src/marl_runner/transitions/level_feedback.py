"""Each agent of a code pair is told which level its joint program failed, and how its tests went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marl_runner.code_tasks import HelperUse, Judgement, judge
from marl_runner.errors import ConfigError, TransitionError
from marl_runner.sandbox.jobs import Limits, Outcome
from marl_runner.sandbox.pool import Sandbox, shared_sandbox
from marl_runner.templates import filled, missing_names

MESSAGES = ("aux", "main", "syntax", "test", "hidden_test", "uncalled", "wrapper", "ignored", "passed")


@dataclass(frozen=True)
class LevelFeedback:
    """Fills `template` for each agent of a program that `reward=code_pair` scores.

    What failed is found as the reward finds it: with the same settings, the outcome of its tests is taken over, and no
    test is run again.

    Attributes:
        template: Text with `{prompt}` (the task), `{answer}` (the agent's own last answer) and `{feedback}`.
        messages: What is said of each level: `aux`, `main`, `syntax` (with `{error}`), `test` (the first failing one
            that may be shown, with `{test}` and `{error}`), `hidden_test` (only others fail; with `{passed}`
            and `{total}`), `uncalled`, `wrapper`, `ignored` (every test passes, but the helper is not used so that it
            counts) and `passed`. `{entry_point}` may be in each.
        sandbox_slice: Tests that may be shown: the first so many, the last so many if negative, all of them if 0 or
            "all".
        sandbox: As of the reward.
        limits: As of the reward.
        sandbox_workers: As of the reward.

    Raises:
        ConfigError: A part of the template or a message is missing, or a value is out of its range.
    """

    template: str
    messages: dict[str, str]
    sandbox_slice: int | str
    sandbox: str
    limits: dict[str, float]
    sandbox_workers: int

    def __post_init__(self) -> None:
        missing = missing_names(self.template, ("prompt", "answer", "feedback"))
        if missing:
            raise ConfigError(f"transition.template has no {missing}")
        if set(self.messages) != set(MESSAGES):
            odd = sorted(set(self.messages) ^ set(MESSAGES))[0]
            what = "is missing" if odd in MESSAGES else "is no message"
            raise ConfigError(f"transition.messages.{odd} {what} (valid: {', '.join(MESSAGES)})")
        if isinstance(self.sandbox_slice, str) and self.sandbox_slice != "all":
            raise ConfigError(f"transition.sandbox_slice must be an integer or all, got {self.sandbox_slice!r}")
        self._shared()

    def start(self) -> None:
        """Starts the sandbox, which is the reward's where the settings are the same.

        Raises:
            ConfigError: Isolation is required and not to be had.
        """
        self._shared().start()

    def __call__(self, prompt: str, agent_completions: Sequence[str], batch_item: dict[str, Any]) -> list[str]:
        """One prompt per agent; both are told the same of their program.

        Raises:
            TransitionError: The team is no pair.
        """
        if len(agent_completions) != 2:
            raise TransitionError(f"level_feedback is for 2 agents, got {len(agent_completions)}")
        helper, main = agent_completions
        judgement = judge(helper, main, batch_item, self._shared())
        feedback = " ".join(self._feedback(judgement, str(batch_item["entry_point"])))
        return [
            filled(self.template, {"prompt": prompt, "answer": answer, "feedback": feedback})
            for answer in agent_completions
        ]

    def _feedback(self, judgement: Judgement, entry_point: str) -> list[str]:
        """What is said: of the helper, and of the first level that failed."""
        said: list[tuple[str, dict[str, str]]] = [] if judgement.helper_defined else [("aux", {})]
        if not judgement.main_defined:
            said.append(("main", {}))
        elif judgement.outcome is None or judgement.use is None:
            said.append(("syntax", {"error": judgement.syntax_error}))
        elif judgement.outcome.failed:
            said.append(self._failed_test(judgement.outcome))
        elif judgement.helper_defined:
            said.append((helper_message(judgement.use), {}))
        return [filled(self.messages[name], {"entry_point": entry_point, **values}) for name, values in said]

    def _failed_test(self, outcome: Outcome) -> tuple[str, dict[str, str]]:
        """The message of the first test that failed and may be shown."""
        number = 0 if isinstance(self.sandbox_slice, str) else self.sandbox_slice
        shown = outcome.tests[number:] if number < 0 else outcome.tests[: number or None]
        for test in shown:
            if not test.passed:
                return "test", {"test": test.source, "error": test.message}
        return "hidden_test", {"passed": str(outcome.passed), "total": str(len(outcome.tests))}

    def _shared(self) -> Sandbox:
        return shared_sandbox(Limits.of(self.limits), self.sandbox, self.sandbox_workers)


def helper_message(use: HelperUse) -> str:
    """The message for a program whose tests all pass."""
    if not use.calls:
        return "uncalled"
    if use.is_wrapper:
        return "wrapper"
    return "ignored" if use.ignores_value else "passed"
