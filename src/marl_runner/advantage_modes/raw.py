"""MAREINFORCE: no baseline.

    A_k = R_k

Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
In expectation the gradient is E[R_k * grad log pi(a_k)], the objective's, times K**(N-1) where joint_mode=cross sums as
many returns; with the largest variance of the four.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Raw:
    """Returns the returns themselves."""

    name: ClassVar[str] = "raw"

    def __call__(self, returns_K: Sequence[float]) -> list[float]:
        """A_k = R_k for any K >= 1."""
        return list(returns_K)
