"""From the columns of a file to our own field names, and the message for a column that is not there."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from marl_runner.datasets.fields import require_fields
from marl_runner.errors import DataError

# What public datasets call the text that a model is asked, the most telling first.
_PROMPT_LIKE = ("question", "instruction", "problem", "query", "input", "text", "task", "story", "title")
_MOST_NAMES_SHOWN = 20


def task_rows(
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    source: str,
    holder: str,
    first_row: int = 1,
) -> list[dict[str, Any]]:
    """Rows under our own field names, each with a usable `prompt`.

    A mapped column appears under our name only; every other column keeps its own name. Where the file has a column
    of that very name too (`columns={"prompt": "question"}` and a column `prompt`), the mapped one is taken, also
    in rows that lack it. Without an entry for `prompt`, the column `prompt` is meant.

    Args:
        rows: At least one row, keyed by the file's columns; keys may differ between rows.
        columns: Our field name → column of the file.
        source: Where the rows come from, for messages: `data.jsonl`.
        holder: What has the columns, for messages: `the file`.
        first_row: Number of the first row in messages, from 1.

    Raises:
        DataError: A mapped column is in no row, or a row's prompt is absent, empty or not text.
    """
    wanted = {"prompt": "prompt", **columns}
    present = list(dict.fromkeys(name for row in rows for name in row))
    for field, column in wanted.items():
        if column not in present:
            raise DataError(_missing_column(field, column, present, source=source, holder=holder))
    renamed = [_renamed(row, wanted) for row in rows]
    origin = "" if wanted["prompt"] == "prompt" else f" (column {wanted['prompt']!r})"
    why = f"needed by every task{origin}; fill it in or remove the row"
    require_fields(renamed, ["prompt"], source=source, why=why, first_row=first_row)
    return renamed


def _renamed(row: Mapping[str, Any], wanted: Mapping[str, str]) -> dict[str, Any]:
    moved = {*wanted, *wanted.values()}
    mapped = {field: row[column] for field, column in wanted.items() if column in row}
    return mapped | {name: value for name, value in row.items() if name not in moved}


def _missing_column(field: str, column: str, present: Sequence[str], *, source: str, holder: str) -> str:
    shown = ", ".join(_shown(name) for name in present[:_MOST_NAMES_SHOWN])
    more = len(present) - _MOST_NAMES_SHOWN
    listed = f"{shown} and {more} more" if more > 0 else shown or "no columns"
    suggestion = _most_plausible(field, column, present)
    way_out = f"set {_override(field, suggestion)}" if suggestion else f"set dataset.columns.{field} to one of them"
    return f"column {column!r} not found in {source}; {holder} has {listed}; {way_out}"


def _most_plausible(field: str, column: str, present: Sequence[str]) -> str | None:
    """The column that was most likely meant: alike in spelling, usual for a prompt, or the only one."""
    by_bare_name = {name.strip().casefold(): name for name in reversed(present) if _pasteable(name)}
    alike = difflib.get_close_matches(column.strip().casefold(), by_bare_name, n=1, cutoff=0.75)
    usual = [name for name in _PROMPT_LIKE if name in by_bare_name] if field == "prompt" else []
    only = list(by_bare_name) if len(present) == 1 and re.fullmatch(r"[\w .-]+", present[0]) else []
    return next((by_bare_name[name] for name in [*alike, *usual, *only]), None)


def _pasteable(name: str) -> bool:
    return name.isprintable() and not set(name) & set("\\$\"'")


def _override(field: str, column: str) -> str:
    """The override as typed in a shell; quoted for Hydra where it would not read the column as this very text."""
    # Only `prompt` is in the YAML; Hydra takes other fields with `++`, whether they are set already or not.
    key = "dataset.columns.prompt" if field == "prompt" else f"++dataset.columns.{field}"
    plain = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]*", column)
    if plain and column.casefold() not in {"true", "false", "null", "nan", "inf", "infinity"}:
        return f"{key}={column}"
    return shlex.quote(f'{key}="{column}"')


def _shown(name: str) -> str:
    return name if name and name.isprintable() and name == name.strip() and "," not in name else repr(name)
