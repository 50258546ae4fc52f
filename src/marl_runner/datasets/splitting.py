"""Which rows are trained on and which are evaluated: the settings that all dataset options share."""

from __future__ import annotations

from marl_runner.errors import ConfigError, DataError


def check_split_settings(eval_fraction: float, max_tasks: int | None) -> None:
    """Check the ranges of the two settings.

    Args:
        eval_fraction: Share of the rows to evaluate on, in [0, 1).
        max_tasks: Most training rows, >= 1, or None for all.

    Raises:
        ConfigError: A value is out of its range.
    """
    if not 0 <= eval_fraction < 1:
        raise ConfigError(f"dataset.eval_fraction must be in [0, 1), got {eval_fraction}")
    if max_tasks is not None and max_tasks < 1:
        raise ConfigError(f"dataset.max_tasks must be >= 1, or null for all rows, got {max_tasks}")


def check_one_eval_source(eval_fraction: float, key: str, value: str | None) -> None:
    """Check that evaluation rows are chosen in one way only.

    Raises:
        ConfigError: Both `eval_fraction` and `key` (such as `eval_path`) are set.
    """
    if value is not None and eval_fraction > 0:
        raise ConfigError(
            f"dataset.{key}={value} and dataset.eval_fraction={eval_fraction} both choose the evaluation rows; "
            f"set dataset.eval_fraction=0 or dataset.{key}=null"
        )


def split_ranges(num_rows: int, eval_fraction: float, max_tasks: int | None, *, source: str) -> tuple[range, range]:
    """Row indices to train on and to evaluate on, in file order, never shuffled.

    The last round(eval_fraction × num_rows) rows are evaluated on, at least one if eval_fraction > 0; of the others
    the first `max_tasks` are trained on.

    Raises:
        DataError: There are no rows, or none is left to train on.
    """
    if num_rows == 0:
        raise DataError(f"{source} has no rows")
    num_eval = max(1, round(eval_fraction * num_rows)) if eval_fraction > 0 else 0
    if num_eval == num_rows:
        raise DataError(
            f"dataset.eval_fraction={eval_fraction} takes all rows of {source} ({num_rows}) for evaluation and "
            "leaves none to train on; lower it or add rows"
        )
    first_eval = num_rows - num_eval
    num_train = first_eval if max_tasks is None else min(max_tasks, first_eval)
    return range(num_train), range(first_eval, num_rows)
