"""A dataset in one or two local files, read fresh every time."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_runner.datasets.columns import task_rows
from marl_runner.datasets.csv_rows import parse_csv
from marl_runner.datasets.json_rows import parse_json, parse_jsonl
from marl_runner.datasets.parquet_rows import parse_parquet
from marl_runner.datasets.splitting import check_one_eval_source, check_split_settings, split_ranges
from marl_runner.errors import ConfigError, DataError
from marl_runner.types import Splits

# (bytes of the file, its name for messages) → rows under the file's own column names
_PARSERS: dict[str, Callable[[bytes, str], Sequence[dict[str, Any]]]] = {
    ".jsonl": parse_jsonl,
    ".ndjson": parse_jsonl,
    ".json": parse_json,
    ".csv": parse_csv,
    ".parquet": parse_parquet,
}


@dataclass(frozen=True)
class Files:
    """Rows of a .jsonl, .ndjson, .json, .csv or .parquet file; the whole file is checked, whatever is used of it.

    Attributes:
        path: The file, absolute or relative to the working folder; `~` is the home folder.
        eval_path: A second file, all of whose rows are evaluated on; None without.
        eval_fraction: Share of the rows of `path`, the last ones, to evaluate on, in [0, 1); 0 with `eval_path`.
        columns: Our field name → column of the file; columns not named here keep their own name.
        max_tasks: Most training rows, >= 1; None takes all.

    Raises:
        ConfigError: A value is out of its range, or evaluation rows are chosen twice.
    """

    path: str
    eval_path: str | None
    eval_fraction: float
    columns: dict[str, str]
    max_tasks: int | None

    def __post_init__(self) -> None:
        check_split_settings(self.eval_fraction, self.max_tasks)
        check_one_eval_source(self.eval_fraction, "eval_path", self.eval_path)
        if not self.path or self.eval_path == "":
            raise ConfigError(f"dataset.{'eval_path' if self.path else 'path'} must name a file, got an empty text")

    def __call__(self) -> Splits:
        """The rows to train on and to evaluate on, in file order.

        Raises:
            DataError: A file cannot be read or has no rows, a mapped column is missing, a prompt is absent, empty
                or not text, or no row is left to train on.
        """
        source = Path(self.path).name
        rows = task_rows(_read_rows("path", self.path, source), self.columns, source=source, holder="the file")
        train, evaluated = split_ranges(len(rows), self.eval_fraction, self.max_tasks, source=source)
        return Splits(
            train=[rows[i] for i in train],
            eval=[rows[i] for i in evaluated] if self.eval_path is None else self._eval_rows(self.eval_path),
        )

    def _eval_rows(self, eval_path: str) -> list[dict[str, Any]]:
        source = f"{Path(eval_path).name} (dataset.eval_path)"
        return task_rows(_read_rows("eval_path", eval_path, source), self.columns, source=source, holder="the file")


def _read_rows(key: str, path: str, source: str) -> Sequence[dict[str, Any]]:
    file = Path(os.path.expanduser(path))
    if os.path.isdir(file):
        raise DataError(
            f"dataset.{key}={path} is a folder; name one file in it, or use dataset=hub dataset.name={path}"
        )
    suffix = file.suffix.lower()
    if suffix not in _PARSERS:
        raise DataError(f"dataset.{key}={path} has the unknown suffix {suffix!r}; known are {', '.join(_PARSERS)}")
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"dataset.{key}={path} does not exist (working folder {Path.cwd()})") from error
    except OSError as error:
        raise DataError(f"dataset.{key}={path} cannot be read: {error.strerror}") from error
    if not data:
        raise DataError(f"{source} is empty (0 bytes); write rows into it or set dataset.{key}")
    return _PARSERS[suffix](data, source)
