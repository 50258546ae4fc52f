"""Advantages in the float32 arithmetic of comlrl 1.4, for `compat="comlrl-1.4"`.

In exact arithmetic K equal returns have no advantage. In float32 their mean can be off by a rounding error, which
comlrl 1.4 then trains on, and which AdamW, that divides by its size, turns into steps of almost full length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from marl_runner.credit import STD_FLOOR, CreditRules
from marl_runner.types import Completion


def float32_advantages(
    returns_K: Sequence[float | None], completions_K: Sequence[Completion], rules: CreditRules
) -> list[float | None]:
    """Penalty, baseline and normalisation of one group, each rounded to float32; None stays None.

    A mode of the user's own computes as it does elsewhere, on the rounded returns.
    """
    present = [
        (value, completion) for value, completion in zip(returns_K, completions_K, strict=True) if value is not None
    ]
    if not present:
        return [None] * len(returns_K)
    values = torch.tensor([value for value, _ in present], dtype=torch.float32)
    penalties = torch.tensor([completion.reference_kl or 0.0 for _, completion in present], dtype=torch.float32)
    weights = after_baseline(values - rules.reference_kl_coef * penalties, rules)
    if rules.normalize and len(weights) > 1:
        weights = (weights - weights.mean()) / weights.std(unbiased=False).clamp(min=STD_FLOOR)
    queue = iter(weights.tolist())
    return [None if value is None else next(queue) for value in returns_K]


def after_baseline(values_K: torch.Tensor, rules: CreditRules) -> torch.Tensor:
    """[K] returns less their baseline, in the order of operations that comlrl 1.4 has."""
    K = len(values_K)
    name = rules.advantage_mode.name
    if name == "mean" or (name == "rloo" and K == 1):
        return values_K - values_K.mean()
    if name == "rloo":
        return (K * values_K - values_K.sum()) / (K - 1)
    if name == "max":
        return values_K - values_K.max()
    return torch.tensor(rules.advantage_mode(values_K.tolist()), dtype=torch.float32)
