"""Aligned: joint action j is completion j of every agent, so J = K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Aligned:
    """Pairs completions by index."""

    name: ClassVar[str] = "aligned"

    def index(self, num_agents: int, num_generations: int) -> list[tuple[int, ...]]:
        """[(0, …, 0), (1, …, 1), …]: one joint action per generation."""
        return [(k,) * num_agents for k in range(num_generations)]

    def size(self, num_agents: int, num_generations: int) -> int:
        """K joint actions at a node."""
        return num_generations

    def credit(
        self,
        index_J: Sequence[tuple[int, ...]],
        returns_J: Sequence[float | None],
        agent: int,
        num_generations: int,
    ) -> list[float | None]:
        """Completion k gets return_k, for every agent; None stays None."""
        return list(returns_J)
