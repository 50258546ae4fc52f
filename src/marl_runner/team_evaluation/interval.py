"""Confidence intervals of a mean over tasks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import bootstrap  # type: ignore[import-untyped]

LEVEL = 0.95
SEED = 0
"""Of the resamples, whatever is evaluated: the same values have the same interval."""
BATCH_NUMBERS = 2**20
"""Most numbers resampled at once: memory, not the result."""


def bootstrap_interval(values: Sequence[float], resamples: int) -> tuple[float, float] | None:
    """The 95 % percentile interval of the mean of `values`, or None of fewer than two.

    Tasks are resampled with replacement; the 2.5 % and 97.5 % quantiles of the resampled means are the bounds. Efron
    (1979), "Bootstrap methods: another look at the jackknife". Equal values give the point itself.

    Args:
        values: One per task, finite.
        resamples: How often, >= 100.
    """
    if len(values) < 2:
        return None
    if min(values) == max(values):
        return values[0], values[0]
    result = bootstrap(
        (np.asarray(values, dtype=np.float64),),
        np.mean,
        n_resamples=resamples,
        batch=max(1, BATCH_NUMBERS // len(values)),
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)
