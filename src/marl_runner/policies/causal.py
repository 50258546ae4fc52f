"""How a transformers causal language model is called: only with what its `forward` takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

Rows = Sequence[Sequence[int]]


class CausalModel:
    """A causal language model and what its signature says about it.

    Args:
        model: A transformers causal language model, in evaluation mode.

    Attributes:
        takes_positions: It takes position ids; one that does not may count padding as positions.
        cache_repeats: Its cache can be repeated for every completion, or was not seen yet.
        shares_attention: Its attention can read a prompt once for several completions; None while not tried.
        generate_is_exact: transformers' generate() was seen to sample what the model gives.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        accepted = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in accepted
        self._takes_logits_to_keep = "logits_to_keep" in accepted
        # transformers renamed `past_key_values` to `cache` within version 5.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._takes_cache = self._cache_name in accepted
        self._head_is_plain: bool | None = None
        self.cache_repeats = True
        self.shares_attention: bool | None = None
        self.generate_is_exact = False

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def step(self, input_ids: torch.Tensor, mask: torch.Tensor, cache: Cache | None) -> tuple[torch.Tensor, Any]:
        """Logits [R, V] after the last of some tokens, and the cache that holds them too.

        Args:
            input_ids: [R, S].
            mask: [R, cached + S], True where a token is real.
            cache: Of the tokens before; None at the first step.
        """
        arguments = self._arguments(input_ids, mask)
        if self._takes_logits_to_keep:
            arguments["logits_to_keep"] = 1
        output = self.model(**arguments, use_cache=True, **{self._cache_name: cache})
        return output.logits[:, -1], output.get(self._cache_name)

    def logits(self, input_ids: torch.Tensor, mask: torch.Tensor, start: int = 0) -> torch.Tensor:
        """[R, S - start, V] after every token from `start` on, without a cache."""
        arguments = self._arguments(input_ids, mask)
        if self._takes_logits_to_keep:
            arguments["logits_to_keep"] = input_ids.shape[1] - start
        logits: torch.Tensor = self.model(**arguments, use_cache=False).logits
        return logits[:, start - input_ids.shape[1] :]

    def hidden(self, input_ids: torch.Tensor, mask: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """[R, S, width] that the output layer reads; a cache is read and extended where there is one."""
        decoder = self.model.get_decoder()
        output = decoder(**self._arguments(input_ids, mask), use_cache=cache is not None, **{self._cache_name: cache})
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    @property
    def head(self) -> Any:
        """The output layer, from hidden states to logits."""
        return self.model.get_output_embeddings()

    def head_is_plain(self, input_ids: torch.Tensor) -> bool:
        """True if logits are the output layer on the hidden states and nothing more; tried once, on these ids [1, S].

        Some models scale their logits or cap them afterwards.
        """
        if self._head_is_plain is None:
            with torch.no_grad():
                self._head_is_plain = self._tried(input_ids)
        return self._head_is_plain

    def _tried(self, input_ids: torch.Tensor) -> bool:
        mask = torch.ones_like(input_ids)
        try:
            by_parts = self.head(self.hidden(input_ids, mask))
        except (AttributeError, TypeError):
            return False  # no decoder or output layer of its own
        logits = self.logits(input_ids, mask)
        return by_parts.shape == logits.shape and torch.equal(by_parts.to(logits.dtype), logits)

    @cached_property
    def shares_prompts(self) -> bool:
        """True if a prompt can be read once, with gradient, for all its completions: every layer keeps all it saw."""
        if not self.takes_positions or not self._takes_cache:
            return False
        return all(type(layer) is DynamicLayer for layer in DynamicCache(config=self.model.config).layers)

    def _arguments(self, input_ids: torch.Tensor, mask: torch.Tensor) -> dict[str, Any]:
        """Ids [R, S] with their mask [R, cached + S] and positions, in which padding does not count."""
        arguments: dict[str, Any] = {"input_ids": input_ids, "attention_mask": mask}
        if self.takes_positions:
            arguments["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
        return arguments


def repeats(cache: Any) -> bool:
    """True for a cache whose rows can be repeated and dropped: keys and values, of all tokens or of a window."""
    kept = (DynamicLayer, DynamicSlidingWindowLayer)
    return isinstance(cache, Cache) and all(type(layer) in kept for layer in cache.layers)


def left_padded(rows: Rows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[P, T] ids and their mask (1 where a token is real), padded on the left with id 0, which is masked."""
    T = max(len(row) for row in rows)
    input_ids = [[0] * (T - len(row)) + list(row) for row in rows]
    mask = [[0] * (T - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(input_ids, device=device), torch.tensor(mask, device=device)


def right_padded(rows: Rows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[P, T] ids and their mask (1 where a token is real), padded on the right with id 0, which is masked."""
    T = max(len(row) for row in rows)
    input_ids = [list(row) + [0] * (T - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (T - len(row)) for row in rows]
    return torch.tensor(input_ids, device=device), torch.tensor(mask, device=device)
