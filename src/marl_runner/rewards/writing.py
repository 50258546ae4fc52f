"""Two agents write two texts about one source: gated levels of length, ratio, vocabulary and coherence.

    rho  = characters(c2) / characters(c1), where characters is len(text)
    upsilon = distinct words(c2) / distinct words(c1)
    Jac  = Jaccard overlap of the content words of c1 and c2
    S    = kinds of transition words present, of 12;  s(S) = 0 if S = 0, else min(1, 0.4 + min(0.05 (S - 1), 0.6))

A level that fails stops the sum there: it and those after it are 0. `marl_runner.rewards.words` says what a token and
a word are. The greatest reward is 0.5 + 1 + 0.5 + 0.4 s(12) + 0.6 = 2.98, since s(12) = 0.4 + 0.05 * 11 = 0.95.

The formulas are those of the public writing tasks of "LLM Collaboration with Multi-Agent Reinforcement Learning"
(arXiv 2508.04652). Public implementations look for transition words anywhere in the text, "so" inside "also" too, so
that nearly every text shows all kinds and S says nothing; here whole words count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from marl_runner.rewards.registry import register_reward
from marl_runner.rewards.words import jaccard, num_tokens, transitions, unique_ratio

LENGTH_POINTS, RATIO_POINTS, VOCABULARY_POINTS = 0.5, 1.0, 0.5
TRANSITION_POINTS, OVERLAP_POINTS = 0.4, 0.6
NUM_AGENTS = 2
REWARD_RANGE = (0.0, 2.98)


@dataclass(frozen=True)
class Trapezoid:
    """1 from `low` to `high`, falling in a straight line to 0 at `start` and at `stop`; failed beyond those.

    Attributes:
        start: Least value that does not fail.
        low: Least value with the full score, > start.
        high: Greatest value with the full score, >= low.
        stop: Greatest value that does not fail, > high, or infinite where `high` is.
    """

    start: float
    low: float
    high: float
    stop: float

    def __call__(self, value: float) -> float | None:
        """The score in [0, 1], or None where the level fails."""
        if not self.start <= value <= self.stop:
            return None
        if value < self.low:
            return (value - self.start) / (self.low - self.start)
        if value > self.high:
            return 1.0 - (value - self.high) / (self.stop - self.high)
        return 1.0


@dataclass(frozen=True)
class Levels:
    """The numbers in which the two writing tasks differ.

    Attributes:
        min_tokens: Fewest tokens of each text.
        max_tokens: Most tokens of each text.
        ratio: Scores rho.
        vocabulary: Scores upsilon.
        full_overlap: Jaccard overlap from which on the score for it is full, in (0, 1].
    """

    min_tokens: int
    max_tokens: int
    ratio: Trapezoid
    vocabulary: Trapezoid
    full_overlap: float


def scored(first: str, second: str, levels: Levels, connected: tuple[str, ...]) -> dict[str, float]:
    """The points of each level, in order, and 0 for a level that failed and for all after it.

    Args:
        first: The text of agent 0.
        second: The text of agent 1.
        levels: The task's numbers.
        connected: The texts whose transition words count.
    """
    components = dict.fromkeys(("length", "ratio", "vocabulary", "coherence"), 0.0)
    if not all(levels.min_tokens <= num_tokens(text) <= levels.max_tokens for text in (first, second)):
        return components
    components["length"] = LENGTH_POINTS
    ratio = levels.ratio(len(second) / len(first))
    if ratio is None:
        return components
    components["ratio"] = RATIO_POINTS * ratio
    upsilon = unique_ratio(first, second)
    vocabulary = None if upsilon is None else levels.vocabulary(upsilon)
    if vocabulary is None:
        return components
    components["vocabulary"] = VOCABULARY_POINTS * vocabulary
    kinds = set[str]().union(*(transitions(text) for text in connected))
    overlap = min(jaccard(first, second), levels.full_overlap) / levels.full_overlap
    components["coherence"] = TRANSITION_POINTS * transition_score(len(kinds)) + OVERLAP_POINTS * overlap
    return components


def transition_score(num_kinds: int) -> float:
    """s(S), in [0, 0.95] for S from 0 to 12."""
    return min(1.0, 0.4 + min(0.05 * (num_kinds - 1), 0.6)) if num_kinds else 0.0


@register_reward("writing_tldr")
@dataclass(frozen=True)
class WritingTldr:
    """A concise summary (agent 0) and a detailed one (agent 1), as four components whose sum is the reward.

    - length: 0.5 if both texts have 8 to 256 tokens.
    - ratio: 1 for 1.6 <= rho <= 3.2; (rho - 1.1) / 0.5 on [1.1, 1.6); 1 - (rho - 3.2) / 1.8 on (3.2, 5.0].
    - vocabulary: 0.5 for upsilon >= 2; 0.5 (upsilon - 1.3) / 0.7 on [1.3, 2).
    - coherence: 0.4 s(S in c2) + 0.6 min(Jac, 0.03) / 0.03.
    """

    reward_range: ClassVar[tuple[float, float]] = REWARD_RANGE
    min_agents: ClassVar[int] = NUM_AGENTS
    levels: ClassVar[Levels] = Levels(
        min_tokens=8,
        max_tokens=256,
        ratio=Trapezoid(1.1, 1.6, 3.2, 5.0),
        vocabulary=Trapezoid(1.3, 2.0, math.inf, math.inf),
        full_overlap=0.03,
    )

    def __call__(self, summaries_J: list[str], details_J: list[str]) -> list[dict[str, float]]:
        """The components of each joint action, their sum in [0, 2.98]; two agents exactly."""
        return [
            scored(first, second, self.levels, connected=(second,))
            for first, second in zip(summaries_J, details_J, strict=True)
        ]


@register_reward("writing_arxiv")
@dataclass(frozen=True)
class WritingArxiv:
    """Background and motivation (agent 0), methods and implications (agent 1), as four components to be summed.

    - length: 0.5 if both texts have 128 to 256 tokens.
    - ratio: 1 for 1.3 <= rho <= 1.6; (rho - 0.8) / 0.5 on [0.8, 1.3); 1 - (rho - 1.6) / 0.4 on (1.6, 2.0].
    - vocabulary: 0.5 for 0.7 <= upsilon <= 1.3; 0.5 (upsilon - 0.5) / 0.2 on [0.5, 0.7);
      0.5 (1 - (upsilon - 1.3) / 0.4) on (1.3, 1.7].
    - coherence: 0.4 s(S in c1 or c2) + 0.6 min(Jac, 0.23) / 0.23.
    """

    reward_range: ClassVar[tuple[float, float]] = REWARD_RANGE
    min_agents: ClassVar[int] = NUM_AGENTS
    levels: ClassVar[Levels] = Levels(
        min_tokens=128,
        max_tokens=256,
        ratio=Trapezoid(0.8, 1.3, 1.6, 2.0),
        vocabulary=Trapezoid(0.5, 0.7, 1.3, 1.7),
        full_overlap=0.23,
    )

    def __call__(self, backgrounds_J: list[str], methods_J: list[str]) -> list[dict[str, float]]:
        """The components of each joint action, their sum in [0, 2.98]; two agents exactly."""
        return [
            scored(first, second, self.levels, connected=(first, second))
            for first, second in zip(backgrounds_J, methods_J, strict=True)
        ]
