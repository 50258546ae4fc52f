"""The built-in dataset: short story-writing prompts of our own, shipped with the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from marl_runner.datasets.columns import task_rows
from marl_runner.datasets.json_rows import parse_jsonl
from marl_runner.datasets.splitting import check_split_settings, split_ranges
from marl_runner.types import Splits


@dataclass(frozen=True)
class Stories:
    """Rows with one field, `prompt`.

    Attributes:
        max_tasks: Most training rows, >= 1; None takes all.
        eval_fraction: Share of the rows, the last ones, to evaluate on, in [0, 1).

    Raises:
        ConfigError: A value is out of its range.
    """

    max_tasks: int | None
    eval_fraction: float

    def __post_init__(self) -> None:
        check_split_settings(self.eval_fraction, self.max_tasks)

    def __call__(self) -> Splits:
        """The prompts, in file order.

        Raises:
            DataError: `eval_fraction` leaves no row to train on.
        """
        source = "stories.jsonl"
        data = resources.files("marl_runner.datasets").joinpath(source).read_bytes()
        rows = task_rows(parse_jsonl(data, source), {}, source=source, holder="the file")
        train, evaluated = split_ranges(len(rows), self.eval_fraction, self.max_tasks, source=source)
        return Splits(train=[rows[i] for i in train], eval=[rows[i] for i in evaluated])
