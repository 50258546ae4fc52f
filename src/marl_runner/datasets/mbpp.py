"""MBPP: short Python problems with three asserts each, from the hub.

Source: "Program Synthesis with Large Language Models" (arXiv 2108.07732).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from marl_runner.datasets.fields import require_fields
from marl_runner.datasets.hub import Hub
from marl_runner.errors import DataError
from marl_runner.types import Splits


@dataclass(frozen=True)
class Mbpp:
    """Rows with `prompt`, `entry_point`, `test` and `canonical_solution`, beside the dataset's own columns.

    The prompt is the task's text and, since that names neither function nor parameters, the first line of the
    reference solution. `test` is the setup that the asserts need (`test_imports`, `test_setup_code`) and the asserts
    of `test_list`, which call the entry point by its name. The entry point is the function of the reference solution
    that the first assert calls: not the first function there is, which can be one that the solution only uses.

    Attributes:
        name: Hub id, or a local folder in the hub's format.
        config: `sanitized` (427 problems, checked by hand) or `full` (974); None for a folder with only one.
        split: Split or slice to train on.
        eval_split: Split or slice to evaluate on; None without.
        columns: Our field name → column of the dataset; `prompt` is `prompt` in `sanitized`, `text` in `full`.
        max_tasks: Most training rows, >= 1; None takes all.

    Raises:
        ConfigError: A value is out of its range.
    """

    name: str
    config: str | None
    split: str
    eval_split: str | None
    columns: dict[str, str]
    max_tasks: int | None

    def __post_init__(self) -> None:
        self._hub()  # which checks the values

    def __call__(self) -> Splits:
        """The rows to train on and to evaluate on, in the dataset's order.

        Raises:
            DataError: The dataset cannot be loaded, or a row has no tests or no function that they call.
        """
        splits = self._hub()()
        return Splits(
            train=code_tasks(splits.train, f"{self.name} (split {self.split})"),
            eval=code_tasks(splits.eval, f"{self.name} (split {self.eval_split})"),
        )

    def _hub(self) -> Hub:
        return Hub(**vars(self), eval_fraction=0.0)


def code_tasks(rows: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    """The rows in our own fields.

    Args:
        rows: Rows of the dataset, each with a `prompt`.
        source: Where they come from, for messages: `someone/rows (split test)`.

    Raises:
        DataError: Naming the first row that has no tests, or whose tests call no function of its `code`.
    """
    require_fields(rows, ("test_list", "code"), source=source, why="needed by dataset=mbpp")
    return [code_task(row, f"row {number} of {source}") for number, row in enumerate(rows, start=1)]


def code_task(row: dict[str, Any], where: str) -> dict[str, Any]:
    """One row in our own fields.

    Raises:
        DataError: Its tests or its `code` are not Python, or the first assert calls no function of `code`.
    """
    setup = [*(row.get("test_imports") or []), row.get("test_setup_code") or ""]
    test = "\n".join(line for line in [*setup, *row["test_list"]] if line)
    functions = {node.name: node for node in parsed(row["code"], "code", where).body if type(node) is ast.FunctionDef}
    name = next((name for name in called_by_first_assert(parsed(test, "test_list", where)) if name in functions), None)
    if name is None:
        raise DataError(f"{where} has no entry point: its first assert calls no function that its 'code' defines")
    signature = f"def {name}({ast.unparse(functions[name].args)}):"
    return row | {
        "prompt": f"{row['prompt']}\n\n{signature}",
        "entry_point": name,
        "test": test,
        "canonical_solution": row["code"],
    }


def parsed(source: str, column: str, where: str) -> ast.Module:
    """Python source as a tree.

    Raises:
        DataError: It is not Python.
    """
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError) as error:
        raise DataError(f"{where} has a {column!r} that is not Python: {error}") from error


def called_by_first_assert(tree: ast.Module) -> list[str]:
    """The names that the first assert calls, the outermost call first; none where there is no assert."""
    first = next((node for node in ast.walk(tree) if isinstance(node, ast.Assert)), None)
    calls = [] if first is None else [node for node in ast.walk(first) if isinstance(node, ast.Call)]
    return [call.func.id for call in calls if isinstance(call.func, ast.Name)]
