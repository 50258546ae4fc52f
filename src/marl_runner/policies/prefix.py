"""Attention of many completions to one prompt, whose keys and values are kept once and not once for each of them.

A cache that is repeated for every completion is copied and read whole at every token. Here the queries of a prompt's
completions meet its keys in one matrix product; the scores of a completion's own tokens are put beside them before the
softmax, so that the result is that of plain attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer

from marl_runner.loss import at_least_float32
from marl_runner.policies.causal import CausalModel

SHARED_FROM = 2048
"""Tokens of a prompt's repeated cache (prompt tokens times K) from which on keeping them once is faster."""


class SharedPrompts:
    """Which rows belong to which prompt: row r is completion `slots[r]` of prompt `prompts[r]`."""

    def __init__(self, num_prompts: int, num_completions: int, device: torch.device) -> None:
        self.shape = (num_prompts, num_completions)
        rows = torch.arange(num_prompts * num_completions, device=device)
        self.prompts, self.slots = rows // num_completions, rows % num_completions

    def keep(self, rows: torch.Tensor) -> None:
        """Drops the other rows."""
        self.prompts, self.slots = self.prompts[rows], self.slots[rows]

    def by_prompt(self, rows: torch.Tensor) -> torch.Tensor:
        """[R, H, G, D] → [P, H, K * G, D]; rows that were dropped are zero."""
        spread = rows.new_zeros(*self.shape, *rows.shape[1:])
        spread[self.prompts, self.slots] = rows
        return spread.transpose(1, 2).flatten(2, 3)

    def by_row(self, prompts: torch.Tensor) -> torch.Tensor:
        """[P, H, K * G, D] → [R, H, G, D]."""
        P, H, _, D = prompts.shape
        return prompts.reshape(P, H, self.shape[1], -1, D).transpose(1, 2)[self.prompts, self.slots]


class PrefixedKeys(torch.Tensor):
    """The keys of the completions' own tokens [R, H, T, D]; attention to them is attention to the prompt's too."""

    layer: PrefixLayer

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is torch.nn.functional.scaled_dot_product_attention:
            query, keys, values = args
            return keys.layer.attention(query, keys.as_subclass(torch.Tensor), values, **(kwargs or {}))
        if function.__name__ != "__get__":  # shape, dtype and the like
            raise TypeError(f"{function.__name__} would see the keys of the completion alone")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


class PrefixLayer(DynamicLayer):  # type: ignore[misc]
    """A prompt's keys and values once for all its completions, and those of the completions' own tokens.

    Args:
        prompt: The layer of a cache that has read P prompts.
        rows: Shared by all layers.
    """

    def __init__(self, prompt: DynamicLayer, rows: SharedPrompts) -> None:
        super().__init__()
        self.lazy_initialization(prompt.keys, prompt.values)
        self._prompt, self._rows = prompt, rows
        _, H, _, D = prompt.keys.shape
        self.keys: torch.Tensor = prompt.keys.new_empty(len(rows.prompts), H, 0, D)
        self.values: torch.Tensor = prompt.values.new_empty(len(rows.prompts), H, 0, prompt.values.shape[-1])

    def get_seq_length(self) -> int:
        """Tokens of prompt and completion."""
        return int(self._prompt.keys.shape[-2] + self.keys.shape[-2])

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> Any:
        """Adds a token; returns what attention is to read."""
        self.keys = torch.cat([self.keys, key_states], dim=-2)
        self.values = torch.cat([self.values, value_states], dim=-2)
        keys: Any = self.keys.as_subclass(PrefixedKeys)
        keys.layer = self
        return keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps some rows; `SharedPrompts.keep` is told once for all layers."""
        self.keys, self.values = self.keys[indices], self.values[indices]

    def attention(
        self,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        scale: float | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """softmax(q [prompt keys, own keys]^T * scale) [prompt values, own values] for one new token of each row.

        Args:
            query: [R, query heads, 1, D], or packed as [R, H, query heads / H, D].
            keys: [R, H, T, D] of the completions' own tokens.
            values: [R, H, T, D].
            attn_mask: [R, 1, 1, S + T], True or zero where attention is allowed; None everywhere.
            scale: Of the scores; None is D ** -0.5.
        """
        R, H, D = keys.shape[0], keys.shape[1], keys.shape[-1]
        q = query.reshape(R, H, -1, D)
        S = self._prompt.keys.shape[-2]
        on_prompt = self._rows.by_row(self._rows.by_prompt(q) @ self._prompt.keys.transpose(-1, -2))
        scores = torch.cat([on_prompt, q @ keys.transpose(-1, -2)], dim=-1) * (D**-0.5 if scale is None else scale)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
        weights = torch.softmax(at_least_float32(scores), dim=-1).to(q.dtype)
        of_prompt = self._rows.by_row(self._rows.by_prompt(weights[..., :S]) @ self._prompt.values)
        return (of_prompt + weights[..., S:] @ values).reshape(query.shape)


def share_prompts(cache: DynamicCache, num_prompts: int, num_completions: int) -> SharedPrompts:
    """Lets a cache that has read P prompts serve K completions of each."""
    rows = SharedPrompts(num_prompts, num_completions, cache.layers[0].keys.device)
    cache.layers = [PrefixLayer(layer, rows) for layer in cache.layers]
    return rows


def can_share(model: CausalModel, token_ids: Sequence[int]) -> bool:
    """Whether a model's attention can read a prompt once for several completions; tried once, on two tokens.

    It must keep every token's keys, and attend by torch's scaled_dot_product_attention.
    """
    if model.shares_attention is None:
        model.shares_attention = _tried(model, torch.tensor([list(token_ids)[:1]], device=model.device))
    return model.shares_attention


def _tried(model: CausalModel, ids: torch.Tensor) -> bool:
    """Compares the logits after a second token of two completions with those of a cache that is repeated."""
    (_, repeated), (_, shared) = (model.step(ids, torch.ones_like(ids), cache=None) for _ in range(2))
    if any(type(layer) is not DynamicLayer for layer in shared.layers):
        return False
    repeated.batch_repeat_interleave(2)
    share_prompts(shared, 1, 2)
    two, mask = ids.repeat(2, 1), ids.new_ones(2, 2)
    try:
        logits, _ = model.step(two, mask, shared)
    except TypeError:
        return False
    return torch.allclose(logits, model.step(two, mask, repeated)[0], rtol=1e-2, atol=1e-2)
