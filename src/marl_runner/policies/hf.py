"""A policy on a transformers causal language model: texts and token ids, sampling, scoring, saving."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from marl_runner.errors import DataError
from marl_runner.policies.causal import CausalModel
from marl_runner.policies.checkpointing import check_has_layers, checkpointed_layers
from marl_runner.policies.decoding import Request, decode
from marl_runner.policies.drawing import uniforms
from marl_runner.policies.model_config import context_length
from marl_runner.policies.scoring import num_scored_tokens, score, shares
from marl_runner.types import Completion, Prompt, Row, Sampling


class HFPolicy:
    """Samples from and scores with one causal language model.

    The model stays in evaluation mode, so that dropout never makes the scored policy differ from the sampled.

    Args:
        model: A transformers causal language model.
        tokenizer: Its tokenizer; its padding side and padding token are never used.
        device: Where the model is put.
        mixed_precision: "none", or "bf16": float32 trainable weights, bfloat16 matrix products in scoring, and a
            bfloat16 copy of the weights to sample from, renewed after every update.
        gradient_checkpointing: Keep only the input of each layer for the backward pass, and compute the rest again.

    Raises:
        ConfigError: The model has no layers that gradient checkpointing knows.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        device: torch.device,
        mixed_precision: str = "none",
        gradient_checkpointing: bool = False,
    ) -> None:
        self.model = model.to(device).eval()
        if mixed_precision != "none":
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.float()
        self.tokenizer = tokenizer
        self.mixed_precision = mixed_precision
        self.gradient_checkpointing = gradient_checkpointing
        if gradient_checkpointing:
            check_has_layers(self.model)
        self.end_ids = end_of_sequence_ids(model, tokenizer)
        self._causal = CausalModel(self.model)
        self._sampler: CausalModel | None = None
        self._sampler_is_old = False

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        return self._causal.device

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and completion together, from the model's configuration; None for no limit."""
        return context_length(self.model.config)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt; a text that already opens with the BOS token does not get a second one."""
        return encode_prompt(self.tokenizer, text)

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """Text of a prompt's token ids, special tokens included: what the model sees."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion's token ids, special tokens left out."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return text

    def generate(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, seeds: Sequence[int]
    ) -> list[tuple[Completion, ...]]:
        """Samples `num_completions` answers to each prompt, all prompts in one batch.

        Args:
            prompts: P prompts of any lengths.
            num_completions: K answers to each.
            sampling: Every sampling field.
            seeds: One per prompt; its answers depend on its seed, not on the other prompts of the batch.

        Returns:
            P tuples of K completions, with their log-probabilities where sampling has a precision of its own.

        Raises:
            RolloutError: The model cannot be sampled, or its probabilities are not finite.
        """
        if not prompts:
            return []
        completions_P_K: dict[int, tuple[Completion, ...]] = {}
        for batch in self._batches(prompts):
            request = Request(
                prompts=[prompts[p].token_ids for p in batch],
                num_completions=num_completions,
                sampling=sampling,
                uniforms=uniforms([seeds[p] for p in batch], num_completions, sampling.max_new_tokens),
                end_ids=self.end_ids,
                log_probs=self.mixed_precision != "none",
            )
            sampled = decode(self._sampling_model(), request)
            rows = [self._completion(*row) for row in zip(sampled.token_ids, sampled.log_probs, strict=True)]
            for place, p in enumerate(batch):
                completions_P_K[p] = tuple(rows[place * num_completions : (place + 1) * num_completions])
        return [completions_P_K[p] for p in range(len(prompts))]

    def _batches(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Indices of prompts sampled together: all of them, or those of one length.

        A model that takes no position ids may count padding as positions, so that it must not be padded.
        """
        if self._causal.takes_positions:
            return [list(range(len(prompts)))]
        by_length: dict[int, list[int]] = {}
        for p, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt.token_ids), []).append(p)
        return list(by_length.values())

    def _sampling_model(self) -> CausalModel:
        """The model itself, or its bfloat16 copy, renewed if the weights have changed since it was made."""
        if self.mixed_precision == "none":
            return self._causal
        if self._sampler is None:
            self._sampler = CausalModel(rounded_copy(self.model))
        elif self._sampler_is_old:
            with torch.no_grad():
                for rounded, exact in zip(self._sampler.model.parameters(), self.model.parameters(), strict=True):
                    rounded.copy_(exact)
        self._sampler_is_old = False
        return self._sampler

    def weights_changed(self) -> None:
        """The sampling copy, if there is one, is renewed before the next completion."""
        self._sampler_is_old = True

    def _completion(self, tokens: list[int], log_prob: float | None) -> Completion:
        finished = tokens[-1] in self.end_ids
        text = self.decode(tokens[:-1] if finished else tokens)
        return Completion(text, tuple(tokens), finished, log_prob=log_prob)

    def token_log_probs(self, rows: Sequence[Row]) -> torch.Tensor:
        """Scores the sampled ids under the prompt ids they were sampled from.

        Returns:
            [R, T] log-probabilities in nats at temperature 1, T the longest completion; 0 beyond a row's end.
        """
        with self._autocast(), checkpointed_layers(self.model) if self.gradient_checkpointing else nullcontext():
            return score(self._causal, rows, self._shares(rows))

    def num_scored_tokens(self, rows: Sequence[Row]) -> int:
        """Tokens, padding included, that `token_log_probs` computes for these rows at once."""
        return num_scored_tokens(rows, self._shares(rows))

    def _shares(self, rows: Sequence[Row]) -> bool:
        # A layer that is computed again would write its cache twice.
        return not self.gradient_checkpointing and shares(self._causal, rows)

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The model's parameters."""
        parameters: Iterable[torch.nn.Parameter] = self.model.parameters()
        return parameters

    def frozen_copy(self, device: torch.device) -> HFPolicy:
        """A deep copy on `device` without gradients."""
        model = copy.deepcopy(self.model).requires_grad_(False)
        return HFPolicy(model, self.tokenizer, device, self.mixed_precision)

    def save(self, folder: Path) -> None:
        """Writes model and tokenizer, loadable by `from_pretrained(folder)`."""
        generation_config = self.model.generation_config
        # transformers refuses to save sampling fields without do_sample; trained weights must not be lost over them.
        self.model.generation_config = type(generation_config)()
        try:
            self.model.save_pretrained(folder)
        finally:
            self.model.generation_config = generation_config
        generation_config.to_json_file(folder / "generation_config.json")
        self.tokenizer.save_pretrained(folder)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.mixed_precision == "none":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)


def rounded_copy(model: Any) -> Any:
    """A frozen copy with bfloat16 weights; buffers, rotary frequencies above all, keep their precision."""
    rounded = copy.deepcopy(model).requires_grad_(False)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return rounded


def end_of_sequence_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Every id that ends a completion: the tokenizer's, the configuration's and the generation configuration's."""
    configs = (model.config, model.config.get_text_config(), model.generation_config)
    ids: set[int] = set()
    for value in (tokenizer.eos_token_id, *(config.to_dict().get("eos_token_id") for config in configs)):
        if isinstance(value, int):
            ids.add(value)
        elif value is not None:
            ids.update(int(token) for token in value)
    return frozenset(ids)


def encode_prompt(tokenizer: Any, text: str) -> tuple[int, ...]:
    """Token ids of a prompt, with at most one beginning-of-sequence token.

    Raises:
        DataError: The text holds a lone surrogate, which is no character.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"the prompt holds the lone surrogate {text[error.start]!a} at character {error.start}, "
            "which no tokenizer can encode; remove it from the data"
        ) from error
    opens_with_bos = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)
    return tuple(tokenizer(text, add_special_tokens=not opens_with_bos)["input_ids"])
