"""Calls a user's formatter, with the next turn's prompt where there is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from marl_runner.errors import ConfigError, DataError
from marl_runner.hooks import accepted_context, hook_name, raised, signature_of
from marl_runner.stopping import REQUEST
from marl_runner.types import Task

Formatter = Callable[..., str]


class PromptFormatter:
    """One agent's formatter.

    Args:
        formatter: `formatter(row) -> text`; may name `external_prompts` to receive a transition's prompt.
            None sends the row's `prompt`.
        agent: Agent index, for messages.
        passthrough: Send a transition's prompt as it is, past the formatter.
    """

    def __init__(self, formatter: Formatter | None, agent: int, passthrough: bool) -> None:
        self._formatter = formatter if formatter is not None else row_prompt
        self._agent = agent
        self._passthrough = passthrough
        signature = signature_of(self._formatter, "formatter")
        self._takes_external = bool(accepted_context(signature, {"external_prompts": None}))

    def __call__(self, task: Task, external_prompt: str | None = None) -> str:
        """The text sent for `task`, at turn 1 or, with `external_prompt`, at a later turn.

        Raises:
            DataError: The formatter raised or did not return text, naming row and agent.
        """
        if external_prompt is not None and self._passthrough:
            return external_prompt
        row = task.row()
        context: dict[str, Any] = {}
        if external_prompt is not None:
            row["prompt"] = external_prompt
            if self._takes_external:
                context["external_prompts"] = external_prompt
        try:
            text = self._formatter(row, **context)
        except DataError:
            raise  # of our own formatters, which say what is wrong with the row
        except Exception as error:
            raise DataError(
                f"formatter {hook_name(self._formatter)} of agent {self._agent} raised "
                f"{raised(error)} (task {task.uid})"
            ) from error
        REQUEST.check()
        if not isinstance(text, str):
            raise DataError(
                f"formatter {hook_name(self._formatter)} of agent {self._agent} returned {type(text).__name__}, "
                f"expected text (task {task.uid})"
            )
        return text


def row_prompt(row: dict[str, Any]) -> str:
    """The default formatter: the row's `prompt`."""
    if "prompt" not in row:
        raise DataError(f"the row has no 'prompt' but {', '.join(map(str, row))}; pass formatters=")
    prompt: str = row["prompt"]
    return prompt


def per_agent(
    formatters: Formatter | Sequence[Formatter] | None, num_agents: int, passthrough: bool
) -> list[PromptFormatter]:
    """One formatter per agent from what the trainer was given.

    Raises:
        ConfigError: A sequence of another length.
    """
    if formatters is None or callable(formatters):
        return [PromptFormatter(formatters, agent, passthrough) for agent in range(num_agents)]
    if len(formatters) != num_agents:
        raise ConfigError(f"formatters has {len(formatters)} entries, but the team has {num_agents} agents")
    return [PromptFormatter(formatter, agent, passthrough) for agent, formatter in enumerate(formatters)]
