"""Sampling: each prompt is read once for all its completions, and rows that ended leave the batch.

`generate()` of transformers reads the prompt once per completion, keeps ended rows to the end, fills every sampling
field left unset from the checkpoint's generation_config, and draws from the global random stream. It is used only
for models whose cache cannot be repeated, and there with our draws.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from marl_runner.errors import RolloutError
from marl_runner.loss import at_least_float32
from marl_runner.policies.causal import CausalModel, Rows, left_padded, repeats
from marl_runner.policies.drawing import draw
from marl_runner.policies.prefix import SHARED_FROM, can_share, share_prompts
from marl_runner.stopping import REQUEST
from marl_runner.types import Sampling

LEAVES = 0.75
"""Ended rows leave when at most this share of the batch still goes on: dropping rows copies the cache."""

SAME_LOG_PROB = 0.5
"""Nats by which rounding may move a log-probability, in bfloat16 too."""


@dataclass(frozen=True)
class Sampled:
    """Token ids of each row through its first end token, and the log-probabilities they had at temperature 1.

    Attributes:
        token_ids: One list per row.
        log_probs: Their sum in nats per row; None where it was not asked for.
    """

    token_ids: list[list[int]]
    log_probs: Sequence[float | None]


@dataclass(frozen=True)
class Request:
    """What is to be sampled.

    Attributes:
        prompts: P prompts' token ids.
        num_completions: K.
        sampling: Every sampling field.
        uniforms: [P * K, T] float64, one number per token drawn.
        end_ids: Tokens that end a completion.
        log_probs: Whether log-probabilities are wanted.
    """

    prompts: Rows
    num_completions: int
    sampling: Sampling
    uniforms: torch.Tensor
    end_ids: Collection[int]
    log_probs: bool


@torch.no_grad()
def decode(model: CausalModel, request: Request) -> Sampled:
    """Samples every completion in one batch.

    Raises:
        RolloutError: The model can be sampled neither here nor by transformers, or its probabilities are not finite.
    """
    K, T = request.num_completions, request.sampling.max_new_tokens
    if not model.cache_repeats:
        return decode_by_transformers(model, request)
    input_ids, mask = left_padded(request.prompts, model.device)
    logits, cache = model.step(input_ids, mask, cache=None)
    if not repeats(cache):
        model.cache_repeats = False
        return decode_by_transformers(model, request)
    shared = None
    if K > 1 and K * input_ids.shape[1] >= SHARED_FROM and can_share(model, request.prompts[0]):
        shared = share_prompts(cache, len(request.prompts), K)
    else:
        cache.batch_repeat_interleave(K)
    logits, mask = logits.repeat_interleave(K, dim=0), mask.repeat_interleave(K, dim=0)
    batch = Batch(request, len(mask), model.device)
    for step in range(T):
        REQUEST.check()
        tokens = batch.draw(logits, step)
        if step + 1 == T or batch.num_going_on == 0:
            break
        if batch.num_going_on <= LEAVES * len(batch.rows):
            kept = batch.drop_ended()
            cache.batch_select_indices(kept)
            if shared is not None:
                shared.keep(kept)
            tokens, mask = tokens[kept], mask[kept]
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        logits, cache = model.step(tokens.unsqueeze(1), mask, cache)
    return batch.sampled()


class Batch:
    """The rows that are being sampled, and what was drawn for all rows so far."""

    def __init__(self, request: Request, num_rows: int, device: torch.device) -> None:
        T = request.sampling.max_new_tokens
        self.rows = torch.arange(num_rows, device=device)
        self.num_going_on = num_rows
        self._request = request
        self._uniforms = request.uniforms.to(device)
        self._end_ids = torch.tensor(sorted(request.end_ids), dtype=torch.long, device=device)
        self._ended = torch.zeros(num_rows, dtype=torch.bool, device=device)
        self._tokens = torch.zeros(num_rows, T, dtype=torch.long, device=device)
        self._log_probs = torch.zeros(num_rows, T, dtype=torch.float64, device=device)

    def draw(self, logits: torch.Tensor, step: int) -> torch.Tensor:
        """The next token of every row in the batch, from its logits [R, V]."""
        logits = at_least_float32(logits)
        tokens = draw(logits, self._request.sampling, self._uniforms[self.rows, step])
        self._tokens[self.rows, step] = tokens
        if self._request.log_probs:
            chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1) - logits.logsumexp(dim=1)
            self._log_probs[self.rows, step] = chosen.double()
        self._ended |= torch.isin(tokens, self._end_ids)
        self.num_going_on = len(self.rows) - int(self._ended.sum())
        return tokens

    def drop_ended(self) -> torch.Tensor:
        """Takes the ended rows out of the batch; returns the places of those that stay."""
        kept = (~self._ended).nonzero().squeeze(1)
        self.rows, self._ended = self.rows[kept], self._ended[kept]
        return kept

    def sampled(self) -> Sampled:
        """Every row through its first end token."""
        token_ids = [through_end(row, self._request.end_ids) for row in self._tokens.tolist()]
        if not self._request.log_probs:
            return Sampled(token_ids, [None] * len(token_ids))
        rows = zip(self._log_probs.tolist(), token_ids, strict=True)
        return Sampled(token_ids, [sum(log_probs[: len(ids)]) for log_probs, ids in rows])


def through_end(tokens: list[int], end_ids: Collection[int]) -> list[int]:
    """The tokens through the first that ends a completion; all of them where none does."""
    end = next((place for place, token in enumerate(tokens) if token in end_ids), len(tokens))
    return tokens[: end + 1]


def decode_by_transformers(model: CausalModel, request: Request) -> Sampled:
    """Samples by `generate()`, for models whose cache cannot be repeated: recurrent, hybrid, or none.

    Prompts of one length go together, because padding would enter a recurrent state. The draws are ours, so that the
    completions are those that the other way would sample.
    """
    if not model.model.can_generate():
        raise RolloutError(f"{type(model.model).__name__} returns no key-value cache and cannot generate()")
    K = request.num_completions
    places_by_length: dict[int, list[int]] = {}
    for place, prompt in enumerate(request.prompts):
        places_by_length.setdefault(len(prompt), []).append(place)
    token_ids: dict[int, list[int]] = {}
    log_probs: dict[int, float] = {}
    for num_tokens, places in places_by_length.items():
        rows = [place * K + k for place in places for k in range(K)]
        input_ids = torch.tensor([request.prompts[place] for place in places], device=model.device)
        ours = Draws(request, rows, num_tokens, model.device)
        sequences = generate(model.model, input_ids.repeat_interleave(K, dim=0), request, ours)
        check_generate(model, sequences, num_tokens, ours)
        tokens = sequences[:, num_tokens:]
        for row, drawn, scores in zip(rows, tokens.tolist(), ours.log_probs.tolist(), strict=True):
            token_ids[row] = through_end(drawn, request.end_ids)
            log_probs[row] = sum(scores[: len(token_ids[row])])
    order = range(len(request.prompts) * K)
    return Sampled([token_ids[row] for row in order], [log_probs[row] if request.log_probs else None for row in order])


def check_generate(model: CausalModel, sequences: torch.Tensor, num_prompt_tokens: int, ours: Draws) -> None:
    """Compares, once for a model, the first two tokens' log-probabilities with those of a pass over the whole text.

    Raises:
        RolloutError: They differ: some models lose their state between the steps of generate().
    """
    if model.generate_is_exact:
        return
    ids = sequences[:, : num_prompt_tokens + 2]
    logits = model.logits(ids, torch.ones_like(ids), num_prompt_tokens - 1)[:, :-1].float()
    scored = logits.log_softmax(dim=-1).gather(2, ids[:, num_prompt_tokens:].unsqueeze(2)).squeeze(2)
    real = torch.ones_like(scored, dtype=torch.bool)
    real[:, 1:] = ~torch.isin(ids[:, num_prompt_tokens : num_prompt_tokens + 1], ours.end_ids)
    difference = float((scored - ours.log_probs[:, : scored.shape[1]]).abs()[real].max())
    if difference > SAME_LOG_PROB:
        raise RolloutError(
            f"{type(model.model).__name__} cannot be sampled: its generate() gives log-probabilities that are up to "
            f"{difference:.3g} nats from those of the whole text"
        )
    model.generate_is_exact = bool(real[:, 1:].any())


class Draws(LogitsProcessor):  # type: ignore[misc]
    """Draws a token and leaves `generate()` no other choice."""

    def __init__(self, request: Request, rows: list[int], num_prompt_tokens: int, device: torch.device) -> None:
        self._sampling = request.sampling
        self._uniforms = request.uniforms[rows].to(device)
        self._num_prompt_tokens = num_prompt_tokens
        self.end_ids = torch.tensor(sorted(request.end_ids), dtype=torch.long, device=device)
        self.log_probs = torch.zeros_like(self._uniforms)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        step = input_ids.shape[1] - self._num_prompt_tokens
        tokens = draw(at_least_float32(scores), self._sampling, self._uniforms[:, step]).unsqueeze(1)
        self.log_probs[:, step] = (scores.gather(1, tokens) - scores.logsumexp(1, keepdim=True)).squeeze(1).double()
        return torch.full_like(scores, -torch.inf).scatter(1, tokens, 0.0)


def generate(model: Any, input_ids: torch.Tensor, request: Request, ours: Draws) -> torch.Tensor:
    """[R, S + T] ids by `generate()`, with nothing of the checkpoint's generation_config."""
    settings = GenerationConfig(
        max_new_tokens=request.sampling.max_new_tokens,
        do_sample=False,
        eos_token_id=sorted(request.end_ids) or None,
        pad_token_id=0,
        use_cache=True,
    )
    of_checkpoint, model.generation_config = model.generation_config, GenerationConfig()
    try:
        tokens: torch.Tensor = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            generation_config=settings,
            logits_processor=LogitsProcessorList([ours]),
        )
    finally:
        model.generation_config = of_checkpoint
    return tokens
