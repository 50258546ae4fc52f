"""MAReMax: the group maximum as baseline.

    A_k = R_k - max_l R_l

After Li et al. (2024), "ReMax", whose baseline is the return of one greedy answer; here it is the best of the
sampled group, and no extra greedy answer is generated. Never positive: the best answer gets 0, the others are pushed
down.

The baseline depends on a_k, and the gradient is biased. In expectation, at a node and with c = 1 (aligned) or
K**(N-1) (cross), it is

    c * grad E[R] - 1/K * grad E[max_k R_k]
    = what `mean` gives - 1/K * grad E[max_k R_k - mean_k R_k]

where R_k is what is credited to the agent's completion k, and the gradient that of the agent's own policy: beside
the objective it makes the best of a group stand out less. Averaging over more groups does not take the bias away;
docs/algorithms.md has its size on an enumerated team.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Max:
    """Subtracts the maximum of the group."""

    name: ClassVar[str] = "max"

    def __call__(self, returns_K: Sequence[float]) -> list[float]:
        """A_k = R_k - max(R) for any K >= 1."""
        best = max(returns_K)
        return [value - best for value in returns_K]
