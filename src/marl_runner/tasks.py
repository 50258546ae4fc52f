"""Dataset rows as tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from marl_runner.errors import ConfigError, DataError
from marl_runner.types import Task


class RepeatedTasks:
    """The rows of a dataset as tasks, iterated anew each time.

    Args:
        rows: A sequence, a dataset, or any iterable that can be iterated more than once.
        argument: What the rows were given as, for messages.
        name: Put before the number of a row in messages and files.

    Raises:
        ConfigError: An iterator, which would be empty the second time, or no rows at all.
    """

    def __init__(self, rows: Any, argument: str, name: str = "") -> None:
        if isinstance(rows, Iterator) or not isinstance(rows, Iterable | MapStyle):
            kind = "an iterator, which can be read only once" if isinstance(rows, Iterator) else repr(rows)
            raise ConfigError(f"{argument} is {kind}: pass a list of dicts or a dataset")
        self._rows = rows
        self._name = name
        self.length = length_of(rows)

    def __iter__(self) -> Iterator[Task]:
        # A plain iteration over a map-style dataset need not end.
        rows = self._rows if isinstance(self._rows, Iterable) else (self._rows[i] for i in range(len(self._rows)))
        return tasks_of(rows, self._name)

    def known(self) -> Iterator[Task]:
        """The tasks that can be looked at before training: all of a sized dataset, none of a stream."""
        return islice(self, self.length or 0)


@runtime_checkable
class MapStyle(Protocol):
    """A torch dataset with `len` and an index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Mapping[str, Any]: ...


def length_of(rows: Any) -> int | None:
    """Number of rows, or None of a stream."""
    try:
        return len(rows) if isinstance(rows, Sized) else None
    except TypeError:  # torch's ChainDataset has a `__len__` that asks streams for theirs
        return None


def tasks_of(rows: Iterable[Mapping[str, Any]], name: str = "") -> Iterator[Task]:
    """Numbers the rows from 1, after `name`, as messages and files call them."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Mapping):
            raise DataError(
                f"row {name}{number} is {type(row).__name__}, expected a mapping of columns: pass a list of dicts or a "
                "dataset (of a DataFrame, to_dict('records'); of a DatasetDict, one split)"
            )
        yield Task(uid=f"{name}{number}", fields=dict(row))
