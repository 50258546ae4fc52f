"""Dataset rows as tasks, and what can be known of them before any model is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from marl_runner.errors import ConfigError, DataError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.sampling import overlong_message, prompt_limit
from marl_runner.settings import MAGRPOConfig
from marl_runner.trainers.sources import Source
from marl_runner.types import Task


class RepeatedTasks:
    """The rows of a dataset as tasks, iterated anew each epoch.

    Args:
        rows: A sequence, a dataset, or any iterable that can be iterated more than once.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.length = len(rows) if isinstance(rows, Sized) else None

    def __iter__(self) -> Iterator[Task]:
        return tasks_of(self._rows)


def tasks_of(rows: Iterable[Mapping[str, Any]]) -> Iterator[Task]:
    """Numbers the rows from 1, as messages and files name them."""
    for number, row in enumerate(rows, start=1):
        yield Task(uid=str(number), fields=dict(row))


def known(rows: Iterable[Mapping[str, Any]]) -> Iterator[Task]:
    """The tasks that can be looked at before training: all of a sized dataset, none of a stream."""
    return tasks_of(rows) if isinstance(rows, Sized) else iter(())


def check_first_prompts(
    tasks: Iterable[Task], sources: Sequence[Source], formatters: Sequence[PromptFormatter], config: MAGRPOConfig
) -> None:
    """Formats and measures every first prompt before any model is loaded.

    Raises:
        ConfigError: No room is left for a prompt beside `max_new_tokens`.
        DataError: A row that cannot be formatted, is empty, or is too long under `overlong_prompt=error`.
    """
    limits = [prompt_limit(source.context_length, config) for source in sources]
    for source, limit in zip(sources, limits, strict=True):
        if limit is not None and limit < 1:
            raise ConfigError(
                f"max_new_tokens={config.max_new_tokens} leaves no room for a prompt in the context of "
                f"{source.context_length} tokens of {source.name}; lower trainer.max_new_tokens"
            )
    for task in tasks:
        for agent, (source, formatter, limit) in enumerate(zip(sources, formatters, limits, strict=True)):
            where = f"row {task.uid}, agent {agent}"
            try:
                num_tokens = len(source.encode(formatter(task)))
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            if num_tokens == 0:
                raise DataError(f"the prompt of row {task.uid} is empty for agent {agent}")
            if limit is not None and num_tokens > limit and config.overlong_prompt == "error":
                raise DataError(overlong_message(num_tokens, limit, source.context_length, config, where))
