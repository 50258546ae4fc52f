"""One token per row from logits: temperature, top-k and top-p of transformers, and a draw by uniform numbers.

A token is the first whose cumulative probability exceeds a uniform number in [0, 1). Each row brings numbers of its
own, so that what a row draws depends neither on the rows beside it nor on the order in which they were batched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from marl_runner.errors import RolloutError
from marl_runner.types import Sampling


def uniforms(seeds: Sequence[int], num_completions: int, max_new_tokens: int) -> torch.Tensor:
    """[P * K, T] float64 numbers in [0, 1) on the CPU: those of a prompt depend on its seed alone."""
    drawn = [
        torch.rand(num_completions, max_new_tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        for seed in seeds
    ]
    return torch.cat(drawn)


def draw(logits: torch.Tensor, sampling: Sampling, uniforms_R: torch.Tensor) -> torch.Tensor:
    """One token per row.

    Args:
        logits: [R, V], float32 or wider.
        sampling: Temperature, top-p and top-k; top-k first, then top-p among what is left.
        uniforms_R: [R] float64 in [0, 1).

    Returns:
        [R] token ids.

    Raises:
        RolloutError: A probability is not finite.
    """
    probabilities, ids = candidates(logits, sampling)
    cumulative = probabilities.double().cumsum(dim=-1)
    if not math.isfinite(float(cumulative[:, -1].sum())):
        raise RolloutError("the model's probabilities are not finite: its weights have diverged or were loaded wrongly")
    places = torch.searchsorted(cumulative, uniforms_R.unsqueeze(1) * cumulative[:, -1:], right=True)
    return (places if ids is None else ids.gather(1, places)).squeeze(1)


def candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What may be drawn: probabilities [R, C], and the ids [R, C] they are of; None where those are 0 … V-1.

    With top-k, only the likeliest tokens are normalised, not the whole vocabulary: k of them, or more where others
    tie with the k-th, which transformers keeps too. They stay in the order of their ids, so that a row draws the same
    whatever the others need.
    """
    if sampling.temperature != 1.0:
        logits = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    ids = None
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        most = max(sampling.top_k, int((logits >= least).sum(dim=-1).max()))  # none is >= NaN
        ids = logits.topk(most, dim=-1).indices.sort(dim=-1).values
        logits = logits.gather(1, ids)
        logits = logits.masked_fill(logits < least, -math.inf)
    if sampling.top_p < 1.0:
        logits = TopPLogitsWarper(sampling.top_p)(None, logits)
    return torch.softmax(logits, dim=-1), ids
