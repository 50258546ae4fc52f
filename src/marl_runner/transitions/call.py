"""Calls a user's external transition: once per branch, by name, with its answer checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marl_runner.errors import TransitionError
from marl_runner.hooks import accepted_context, check_names, hook_name, raised, signature_of
from marl_runner.stopping import REQUEST
from marl_runner.types import Task, Turn

OFFERED = (
    "prompt",
    "agent_completions",
    "num_agents",
    "prompt_history_per_agent",
    "response_history_per_agent",
    "batch_item",
)


class TransitionCaller:
    """An external transition bound to a team.

    Args:
        function: Takes any of `prompt`, `agent_completions`, `num_agents`, `prompt_history_per_agent`,
            `response_history_per_agent`, `batch_item` by name; returns one prompt per agent.
        num_agents: Prompts it must return.

    Raises:
        ConfigError: It needs a parameter that is not offered.
    """

    def __init__(self, function: Callable[..., Any], num_agents: int) -> None:
        signature = signature_of(function, "external_transition")
        self.name = hook_name(function)
        check_names(signature, set(OFFERED), "external_transition", self.name)
        self.function = function
        self._accepted = set(accepted_context(signature, dict.fromkeys(OFFERED)))
        self._num_agents = num_agents

    def __call__(self, task: Task, history: Sequence[Turn]) -> tuple[str, ...]:
        """The next prompt of each agent on one branch.

        Args:
            task: The dataset row.
            history: The branch so far, the turn just played last.

        Raises:
            TransitionError: The function raised, or did not return exactly one text per agent.
        """
        agents = range(self._num_agents)
        offered = {
            "prompt": task.prompt,
            "agent_completions": list(history[-1].actions_N),
            "num_agents": self._num_agents,
            "prompt_history_per_agent": [[turn.prompts_N[n] for turn in history] for n in agents],
            "response_history_per_agent": [[turn.actions_N[n] for turn in history] for n in agents],
            "batch_item": task.row(),
        }
        where = f"task {task.uid}, after turn {len(history)}"
        try:
            answer = self.function(**{name: offered[name] for name in self._accepted})
        except Exception as error:
            raise TransitionError(f"external_transition {self.name} raised {raised(error)} ({where})") from error
        REQUEST.check()
        return self._checked(answer, where)

    def _checked(self, answer: Any, where: str) -> tuple[str, ...]:
        expected = f"a list of {self._num_agents} prompts, one per agent"
        if not isinstance(answer, (list, tuple)):
            raise TransitionError(
                f"external_transition {self.name} returned {type(answer).__name__}, expected {expected} ({where})"
            )
        if len(answer) != self._num_agents:
            raise TransitionError(
                f"external_transition {self.name} returned {len(answer)} prompts, expected {expected} ({where})"
            )
        for agent, prompt in enumerate(answer):
            if not isinstance(prompt, str):
                raise TransitionError(
                    f"external_transition {self.name} returned {type(prompt).__name__} for agent {agent}, "
                    f"expected text ({where})"
                )
        return tuple(answer)
