"""A dataset of the Hugging Face hub, or a local folder in the hub's format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl_runner.datasets.columns import task_rows
from marl_runner.datasets.hub_split import cache_for, load_split, local_folder
from marl_runner.datasets.splitting import check_one_eval_source, check_split_settings, split_ranges
from marl_runner.errors import ConfigError
from marl_runner.types import Splits


@dataclass(frozen=True)
class Hub:
    """Rows of one or two splits, as `datasets.load_dataset` gives them; only the rows used are checked.

    A hub id is served from the library's cache when there is no network. A local folder is read fresh every time,
    and the cells of its CSV files stay text.

    Attributes:
        name: Hub id, or a local folder, absolute or relative to the working folder; `~` is the home folder.
        config: Name of the dataset's configuration; None where it has only one.
        split: Split to train on; slices such as `train[:10%]` work.
        eval_split: Split to evaluate on, all of it; None without.
        eval_fraction: Share of the rows of `split`, the last ones, to evaluate on, in [0, 1); 0 with `eval_split`.
        columns: Our field name → column of the dataset; columns not named here keep their own name.
        max_tasks: Most training rows, >= 1; None takes all.

    Raises:
        ConfigError: A value is out of its range, or evaluation rows are chosen twice.
    """

    name: str
    config: str | None
    split: str
    eval_split: str | None
    eval_fraction: float
    columns: dict[str, str]
    max_tasks: int | None

    def __post_init__(self) -> None:
        check_split_settings(self.eval_fraction, self.max_tasks)
        check_one_eval_source(self.eval_fraction, "eval_split", self.eval_split)
        if not self.name:
            raise ConfigError("dataset.name must name a hub dataset or a folder, got an empty text")

    def __call__(self) -> Splits:
        """The rows to train on and to evaluate on, in the dataset's order.

        Raises:
            DataError: The dataset, its configuration or a split is not there or cannot be read, a mapped column is
                missing, a prompt is absent, empty or not text, or no row is left to train on.
        """
        folder = local_folder(self.name)
        with cache_for(folder) as cache_dir:
            whole = load_split(self.name, self.config, self.split, key="split", folder=folder, cache_dir=cache_dir)
            train, evaluated = split_ranges(
                len(whole), self.eval_fraction, self.max_tasks, source=self._source(self.split)
            )
            train_rows = self._rows(whole, train, self.split)
            if self.eval_split is None:
                return Splits(train=train_rows, eval=self._rows(whole, evaluated, self.split))
            whole = load_split(
                self.name, self.config, self.eval_split, key="eval_split", folder=folder, cache_dir=cache_dir
            )
            everything, _ = split_ranges(len(whole), 0.0, None, source=self._source(self.eval_split))
            return Splits(train=train_rows, eval=self._rows(whole, everything, self.eval_split))

    def _rows(self, whole: Any, chosen: range, split: str) -> list[dict[str, Any]]:
        if not chosen:
            return []
        rows = whole.select(chosen).to_list()
        return task_rows(rows, self.columns, source=self._source(split), holder="the split", first_row=chosen.start + 1)

    def _source(self, split: str) -> str:
        return f"{self.name} (split {split})"
