"""MAGRPO: the group mean as baseline.

    A_k = R_k - 1/K * sum_l R_l

Shao et al. (2024), "DeepSeekMath" (GRPO); over agents: Liu et al. (2025), "LLM Collaboration with Multi-Agent
Reinforcement Learning". The mean includes k itself, so the baseline is not independent of the action: the 1/K of
it that is R_k cancels that share of the signal, and in expectation the gradient is (K-1)/K times that of `raw`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import ClassVar


@dataclass(frozen=True)
class Mean:
    """Subtracts the mean of the group."""

    name: ClassVar[str] = "mean"

    def __call__(self, returns_K: Sequence[float]) -> list[float]:
        """A_k = R_k - mean(R) for any K >= 1; a group of one gets 0."""
        baseline = mean(returns_K)
        return [value - baseline for value in returns_K]
