"""Rows from Parquet files, through the Arrow library that `datasets` brings along; no cache is involved."""

from __future__ import annotations

from typing import Any

from marl_runner.errors import DataError


def parse_parquet(data: bytes, source: str) -> list[dict[str, Any]]:
    """The rows of one Parquet file, in order; null cells are None.

    Args:
        data: The file.
        source: The file's name, for messages.

    Raises:
        DataError: The file cannot be read, repeats a column name, or has no rows.
    """
    import pyarrow  # type: ignore[import-untyped, unused-ignore]
    import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

    try:
        table = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(data)).read()
        names = table.column_names
        repeated = [name for name in names if names.count(name) > 1]
        if repeated:
            raise DataError(f"{source} has the column {repeated[0]!r} more than once; rename one of them")
        rows: list[dict[str, Any]] = table.to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{source} is not a readable Parquet file: {str(error).partition(chr(10))[0]}") from error
    if not rows:
        raise DataError(f"{source} has no rows, only a schema")
    return rows
