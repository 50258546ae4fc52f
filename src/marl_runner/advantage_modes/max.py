"""MAReMax: the group maximum as baseline.

    A_k = R_k - max_l R_l

After Li et al. (2024), "ReMax", whose baseline is the return of one greedy answer; here it is the best of the
sampled group, and no extra greedy answer is generated. Never positive: only the best answer keeps its weight.
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
