"""Dataset rows as tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from marl_runner.errors import ConfigError, DataError
from marl_runner.types import Task


class RepeatedTasks:
    """The rows of a dataset as tasks, iterated anew each epoch.

    Args:
        rows: A sequence, a dataset, or any iterable that can be iterated more than once.

    Raises:
        ConfigError: An iterator, which would be empty from the second epoch on.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        if isinstance(rows, Iterator):
            raise ConfigError("train_dataset is an iterator, which can be read only once: pass a list or a dataset")
        self._rows = rows
        self.length = len(rows) if isinstance(rows, Sized) else None

    def __iter__(self) -> Iterator[Task]:
        return tasks_of(self._rows)

    def known(self) -> Iterator[Task]:
        """The tasks that can be looked at before training: all of a sized dataset, none of a stream."""
        return iter(self) if self.length is not None else iter(())


def tasks_of(rows: Iterable[Mapping[str, Any]], name: str = "") -> Iterator[Task]:
    """Numbers the rows from 1, after `name`, as messages and files call them."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {name}{number} is {type(row).__name__}, expected a mapping of columns: pass a list of dicts or a "
                "dataset (of a DataFrame, to_dict('records'); of a DatasetDict, one split)"
            )
        yield Task(uid=f"{name}{number}", fields=dict(row))
