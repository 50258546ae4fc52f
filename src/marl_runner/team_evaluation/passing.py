"""Which paths pass, and how many of k would: pass@k."""

from __future__ import annotations

import math
from dataclasses import dataclass

from marl_runner.types import Reward

WHOLE_REWARD = "reward"
"""Names the processed reward itself in a rule, not one of its components."""


@dataclass(frozen=True)
class PassRule:
    """A reward passes if a named part of it is at least a value; one without that part, or that abstained, does not.

    Attributes:
        name: A component, or "reward" for the reward after its processor.
        least: Least value that passes.
    """

    name: str
    least: float

    def holds(self, reward: Reward) -> bool:
        """True if the reward passes."""
        value = self.value(reward)
        return value is not None and value >= self.least

    def value(self, reward: Reward) -> float | None:
        """What is compared, or None where the reward has no such part."""
        return reward.value if self.name == WHOLE_REWARD else reward.components.get(self.name)

    def __str__(self) -> str:
        return f"{self.name}>={self.least:g}"


DEFAULT_RULE = PassRule("tests", 1.0)
"""All tests passed: the component `tests` of the code rewards is the share of the tests that did."""


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples passes: 1 - C(n - c, k) / C(n, k).

    The share of the k-subsets of the n samples that hold a passing one. Chen et al. (2021), "Evaluating Large Language
    Models Trained on Code", section 2.1, equation 1. In whole numbers up to the one division, so that it is exact.

    Args:
        num_samples: n, >= 1.
        num_passed: c, in [0, n].
        k: In [1, n].
    """
    if not (0 <= num_passed <= num_samples and 1 <= k <= num_samples):
        raise ValueError(f"need 0 <= c <= n and 1 <= k <= n, got n={num_samples}, c={num_passed}, k={k}")
    subsets = math.comb(num_samples, k)
    return (subsets - math.comb(num_samples - num_passed, k)) / subsets
