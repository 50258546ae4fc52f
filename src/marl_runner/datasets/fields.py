"""Which fields every row must carry; a pure check, also for rewards and formatters that need a column."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from marl_runner.errors import DataError


def require_fields(
    rows: Iterable[Mapping[str, Any]],
    fields: Sequence[str],
    *,
    source: str,
    why: str,
    first_row: int = 1,
) -> None:
    """Check that every row has every one of `fields`.

    A field counts as missing when its key is absent or its value is None, which is what Arrow makes of an absent
    key. `prompt` must also be text that is more than whitespace; other fields may hold any value, "" included.

    Args:
        rows: The rows to check, in the order in which they are numbered.
        fields: Our own field names.
        source: Where the rows come from, for the message: `data.jsonl`.
        why: The end of the sentence: `needed by reward code_pair`.
        first_row: Number of the first row, from 1.

    Raises:
        DataError: `row 2 of data.jsonl has no 'tests', needed by reward code_pair`, for the first such row.
    """
    for number, row in enumerate(rows, start=first_row):
        problem = first_problem(row, fields)
        if problem:
            raise DataError(f"row {number} of {source} {problem}, {why}")


def first_problem(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """What is wrong with the first of `fields` that a row does not carry, such as `has no 'tests'`; "" if none is."""
    problems = (_problem(name, row.get(name)) for name in fields)
    return next((problem for problem in problems if problem), "")


def _problem(name: str, value: Any) -> str:
    if value is None:
        return f"has no {name!r}"
    if name != "prompt":
        return ""
    if not isinstance(value, str):
        return f"has a 'prompt' that is not text but {type(value).__name__} {reprlib.repr(value)}"
    return "" if value.strip() else "has an empty 'prompt'"
