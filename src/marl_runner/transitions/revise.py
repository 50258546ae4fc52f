"""Each agent is shown the task and its own previous answer, and asked for a better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marl_runner.errors import ConfigError
from marl_runner.templates import filled, missing_names


@dataclass(frozen=True)
class Revise:
    """Fills `template` for each agent.

    Attributes:
        template: Text with `{prompt}` (the task) and `{answer}` (the agent's own last answer).
    """

    template: str

    def __post_init__(self) -> None:
        missing = missing_names(self.template, ("prompt", "answer"))
        if missing:
            raise ConfigError(f"transition.template has no {missing}")

    def __call__(self, prompt: str, agent_completions: Sequence[str]) -> list[str]:
        """One prompt per agent. Braces inside the task or an answer are left as they are."""
        return [filled(self.template, {"prompt": prompt, "answer": answer}) for answer in agent_completions]
