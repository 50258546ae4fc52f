"""Cross: every combination of the agents' completions is scored, so J = K**N.

A completion's return is a sum of K**(N-1) returns that each have the mean of an aligned one, so that in expectation
the gradient is K**(N-1) times the aligned one under `raw`, `rloo` and `mean`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import ClassVar


@dataclass(frozen=True)
class Cross:
    """Scores the Cartesian product of completion indices, in `itertools.product` order."""

    name: ClassVar[str] = "cross"

    def index(self, num_agents: int, num_generations: int) -> list[tuple[int, ...]]:
        """[(0, …, 0), (0, …, 1), …]: the last agent's index runs fastest."""
        return list(itertools.product(range(num_generations), repeat=num_agents))

    def size(self, num_agents: int, num_generations: int) -> int:
        """K**N joint actions at a node."""
        return int(num_generations**num_agents)

    def credit(
        self,
        index_J: Sequence[tuple[int, ...]],
        returns_J: Sequence[float | None],
        agent: int,
        num_generations: int,
    ) -> list[float | None]:
        """Completion k gets the SUM of the returns of the K**(N-1) joint actions that contain it.

        Where some of them abstained, the sum of the others is scaled up to K**(N-1) terms, so that an
        abstention moves no completion up or down; where all abstained, the completion abstains.
        """
        num_terms = len(index_J) // num_generations
        credited: list[float | None] = []
        for k in range(num_generations):
            scored = [
                value
                for index_N, value in zip(index_J, returns_J, strict=True)
                if index_N[agent] == k and value is not None
            ]
            credited.append(mean(scored) * num_terms if scored else None)
        return credited
