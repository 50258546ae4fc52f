"""Dataset rows as tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

from marl_runner.errors import ConfigError, DataError
from marl_runner.types import Task


class RepeatedTasks:
    """The rows of a dataset as tasks, iterated anew each time.

    Args:
        rows: A sequence, a dataset, or any iterable that can be iterated more than once.
        name: Put before the number of a row in messages and files.

    Raises:
        ConfigError: An iterator, which would be empty the second time.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]], name: str = "") -> None:
        if isinstance(rows, Iterator):
            raise ConfigError("a dataset is an iterator, which can be read only once: pass a list or a dataset")
        self._rows = rows if isinstance(rows, Iterable) else IndexedRows(rows)
        self._name = name
        self.length = len(rows) if isinstance(rows, Sized) else None

    def __iter__(self) -> Iterator[Task]:
        return tasks_of(self._rows, self._name)

    def known(self) -> Iterator[Task]:
        """The tasks that can be looked at before training: all of a sized dataset, none of a stream."""
        return iter(self) if self.length is not None else iter(())


class IndexedRows:
    """A map-style torch dataset, which has `len` and an index and promises no end to a plain iteration."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self._rows[index] for index in range(len(self._rows)))


def tasks_of(rows: Iterable[Mapping[str, Any]], name: str = "") -> Iterator[Task]:
    """Numbers the rows from 1, after `name`, as messages and files call them."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {name}{number} is {type(row).__name__}, expected a mapping of columns: pass a list of dicts or a "
                "dataset (of a DataFrame, to_dict('records'); of a DatasetDict, one split)"
            )
        yield Task(uid=f"{name}{number}", fields=dict(row))
