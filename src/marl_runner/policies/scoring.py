"""Log-probabilities of sampled tokens, with gradient: what the update spends its time and memory on.

A prompt that several completions share is read once, into a key-value cache through which the gradient flows. The
vocabulary is looked at in chunks of tokens that are computed again in the backward pass, so that memory grows with
neither the number of tokens nor the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import DynamicCache

from marl_runner.loss import token_log_probs
from marl_runner.policies.causal import CausalModel, left_padded, right_padded
from marl_runner.types import Row

CHUNK_LOGITS = 2**24
"""Most logits held at once; 64 MiB in float32."""
SHARE_FROM = 256
"""Prompt tokens that must be saved for a prompt to be read once: two passes cost more than one."""


def score(model: CausalModel, rows: Sequence[Row], share: bool) -> torch.Tensor:
    """[R, T] log-probabilities in nats at temperature 1 of each row's completion; 0 beyond its end."""
    num_tokens = torch.tensor([len(completion.token_ids) for _, completion in rows], device=model.device)
    T = int(num_tokens.max())
    real = torch.arange(T, device=model.device) < num_tokens.unsqueeze(1)
    token_ids = right_padded([completion.token_ids for _, completion in rows], model.device)[0][real]
    if not has_plain_head(model, rows):
        scored = token_log_probs(logits_at(model, rows, real), token_ids)
    else:
        hidden = shared_hidden(model, rows, real) if share else hidden_at(model, rows, real)
        scored = head_log_probs(model.head, hidden, token_ids)
    return scored.new_zeros(real.shape).masked_scatter(real, scored)


def shares(model: CausalModel, rows: Sequence[Row]) -> bool:
    """Whether reading each prompt once is worth while, and possible."""
    lengths = [len(prompt.token_ids) for prompt, _ in rows]
    saved = sum(lengths) - sum(len(ids) for ids in {prompt.token_ids for prompt, _ in rows})
    return saved >= SHARE_FROM and model.shares_prompts and has_plain_head(model, rows)


def has_plain_head(model: CausalModel, rows: Sequence[Row]) -> bool:
    """Whether the output layer can be computed apart; tried on the first prompt."""
    return model.head_is_plain(torch.tensor([rows[0][0].token_ids], device=model.device))


def num_scored_tokens(rows: Sequence[Row], share: bool) -> int:
    """Tokens that `score` computes, padding included."""
    if not share:
        return len(rows) * max(len(prompt.token_ids) + len(completion.token_ids) for prompt, completion in rows)
    prompts = {prompt.token_ids for prompt, _ in rows}
    longest = max(len(completion.token_ids) for _, completion in rows)
    return len(prompts) * max(map(len, prompts)) + len(rows) * longest


def whole_rows(model: CausalModel, rows: Sequence[Row], real: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """[R, S] ids and mask of prompts with their completions, and the two indices of what predicts each real token."""
    input_ids, mask = right_padded([(*p.token_ids, *c.token_ids) for p, c in rows], model.device)
    before = torch.tensor([len(prompt.token_ids) - 1 for prompt, _ in rows], device=model.device)
    row, place = real.nonzero(as_tuple=True)
    return input_ids, mask, row, before[row] + place


def logits_at(model: CausalModel, rows: Sequence[Row], real: torch.Tensor) -> torch.Tensor:
    """[M, V] logits that predict the M real tokens."""
    input_ids, mask, row, place = whole_rows(model, rows, real)
    start = int(place.min())
    return model.logits(input_ids, mask, start)[row, place - start]


def hidden_at(model: CausalModel, rows: Sequence[Row], real: torch.Tensor) -> torch.Tensor:
    """[M, width] hidden states that predict the M real tokens."""
    input_ids, mask, row, place = whole_rows(model, rows, real)
    return model.hidden(input_ids, mask)[row, place]


def shared_hidden(model: CausalModel, rows: Sequence[Row], real: torch.Tensor) -> torch.Tensor:
    """[M, width] as `hidden_at` has them, each prompt read once: gradients of its completions meet in its cache."""
    prompts = list(dict.fromkeys(prompt.token_ids for prompt, _ in rows))
    prompt_of_row = torch.tensor([prompts.index(prompt.token_ids) for prompt, _ in rows], device=model.device)
    prompt_ids, prompt_mask = left_padded(prompts, model.device)  # right before the completions
    cache = DynamicCache(config=model.model.config)
    last = model.hidden(prompt_ids, prompt_mask, cache)[:, -1][prompt_of_row]
    # The last token of a completion predicts nothing that is scored.
    completion_ids, mask = right_padded([completion.token_ids[:-1] for _, completion in rows], model.device)
    states = last.unsqueeze(1)
    if completion_ids.shape[1]:
        cache.batch_select_indices(prompt_of_row)
        after = model.hidden(completion_ids, torch.cat([prompt_mask[prompt_of_row], mask], dim=1), cache)
        states = torch.cat([states, after], dim=1)
    return states[real]


def head_log_probs(head: Any, hidden: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """[M] log-probabilities of M tokens from the hidden states [M, width] that predict them.

    In chunks of at most CHUNK_LOGITS logits; where there are several, their logits are not kept for the backward
    pass but computed again.
    """

    def log_probs(states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return token_log_probs(head(states), ids)

    size = max(1, CHUNK_LOGITS // head.weight.shape[0])
    if len(token_ids) <= size:
        return log_probs(hidden, token_ids)
    chunks = zip(torch.split(hidden, size), torch.split(token_ids, size), strict=True)
    return torch.cat(
        # Nothing random is computed again, and the global random stream is not this thread's alone.
        [checkpoint(log_probs, states, ids, use_reentrant=False, preserve_rng_state=False) for states, ids in chunks]
    )
