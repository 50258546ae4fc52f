"""Rows from CSV text: every cell is the text that stands there, `NA`, `007` and `TRUE` included."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from marl_runner.datasets.utf8 import decode_utf8
from marl_runner.errors import DataError

_LARGEST_CELL = 2**31 - 1


@dataclass(frozen=True)
class _Record:
    """One record and the number of the line it ends on, from 1."""

    line: int
    cells: list[str]


def parse_csv(data: bytes, source: str) -> list[dict[str, str]]:
    """One row per record under the header, in order; cells are text, an empty cell is "".

    Cells are separated by commas and may be quoted, over several lines too. Blank lines are skipped; but where the
    header has a single column, a blank line between two rows is an empty cell.

    Args:
        data: The file, UTF-8 with or without a byte order mark, lines ended by LF or CRLF.
        source: The file's name, for messages.

    Raises:
        DataError: The quoting is broken, the header repeats a name, a row has more or fewer cells than the header,
            or there is no row; the row is named.
    """
    with _cells_of_any_size():
        records = list(_records(decode_utf8(data, source), source))
    while records and not records[-1].cells:
        records.pop()
    header, *body = [record for record in records if record.cells] or [_Record(0, [])]
    if len(header.cells) == 1:
        body = [record for record in records if record.line > header.line]
    repeated = [name for name in header.cells if header.cells.count(name) > 1]
    if repeated:
        raise DataError(f"the header of {source} has the column {repeated[0]!r} more than once; rename one of them")
    if not body:
        raise DataError(f"{source} has no rows, only {'a header' if header.cells else 'blank lines'}")
    return [_row(header.cells, record, number, source) for number, record in enumerate(body, start=1)]


def _records(text: str, source: str) -> Iterator[_Record]:
    # strict refuses broken quotes, which would swallow the rows up to the next quote.
    reader = csv.reader(io.StringIO(text), strict=True)
    started_at = 1
    try:
        for cells in reader:
            yield _Record(reader.line_num, cells)
            started_at = reader.line_num + 1
    except csv.Error as error:
        reason = str(error).partition(" - ")[0]
        raise DataError(f"{source} is not valid CSV from line {started_at} on: {reason}; check the quotes") from error


def _row(header: list[str], record: _Record, number: int, source: str) -> dict[str, str]:
    cells = record.cells or [""]
    if len(cells) != len(header):
        raise DataError(
            f"row {number} of {source} (line {record.line}) has {len(cells)} cells, the header has {len(header)}; "
            "put cells that hold a comma or a line end in double quotes"
        )
    return dict(zip(header, cells, strict=True))


@contextmanager
def _cells_of_any_size() -> Iterator[None]:
    """Lifts the csv module's limit of 131072 characters per cell, and sets it back: it is global."""
    before = csv.field_size_limit(_LARGEST_CELL)
    try:
        yield
    finally:
        csv.field_size_limit(before)
