"""MARLOO: the mean of the other generations as baseline.

    A_k = R_k - 1/(K-1) * sum_{l != k} R_l  =  K/(K-1) * (R_k - mean_l R_l)

Kool et al. (2019), "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al. (2024), "Back to
basics" (RLOO). "Leave one out" is over the generations of ONE agent at ONE node, never over agents.

In expectation the gradient is the objective's, as without a baseline: the others do not depend on a_k, so that what
is subtracted, E[R_l * grad log pi(a_k)] = E[R_l] * E[grad log pi(a_k)], is 0. Early termination breaks that, because
the others' returns then depend on a_k too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import ClassVar


@dataclass(frozen=True)
class Rloo:
    """Subtracts the mean of the others."""

    name: ClassVar[str] = "rloo"

    def __call__(self, returns_K: Sequence[float]) -> list[float]:
        """A_k = R_k - mean of the others; a group of one has no others and gets 0."""
        K = len(returns_K)
        if K == 1:
            return [0.0]
        group_mean = mean(returns_K)
        return [K / (K - 1) * (value - group_mean) for value in returns_K]
