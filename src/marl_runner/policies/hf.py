"""A policy on a transformers causal language model: our own padding, sampling loop and scoring.

`generate()` of transformers fills every sampling field left unset from the checkpoint's generation_config and
draws from the global random stream. This loop reads nothing from the checkpoint but the end-of-sequence ids,
and draws from the stream it is given.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from marl_runner.errors import DataError, RolloutError
from marl_runner.loss import token_log_probs
from marl_runner.policies.model_config import context_length
from marl_runner.types import Completion, Prompt, Sampling


class HFPolicy:
    """Samples from and scores with one causal language model.

    The model stays in evaluation mode, so that dropout never makes the scored policy differ from the sampled.

    Args:
        model: A transformers causal language model.
        tokenizer: Its tokenizer; its padding side and padding token are never used.
        device: Where the model is put.
        mixed_precision: "none", or "bf16" for bfloat16 matrix products over the weights as they are.
    """

    def __init__(self, model: Any, tokenizer: Any, device: torch.device, mixed_precision: str = "none") -> None:
        self.model = model.to(device).eval()
        self.tokenizer = tokenizer
        self.mixed_precision = mixed_precision
        self.end_ids = end_of_sequence_ids(model, tokenizer)
        accepted = inspect.signature(model.forward).parameters
        self._takes_positions = "position_ids" in accepted
        self._takes_logits_to_keep = "logits_to_keep" in accepted
        # transformers renamed `past_key_values` to `cache` within version 5.
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"

    @property
    def device(self) -> torch.device:
        """Device of the first parameter."""
        device: torch.device = next(self.model.parameters()).device
        return device

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

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, rng: torch.Generator
    ) -> list[tuple[Completion, ...]]:
        """Samples `num_completions` answers to each prompt, all prompts in one batch.

        Args:
            prompts: P prompts of any lengths; padded here on the left.
            num_completions: K answers to each.
            sampling: Every sampling field.
            rng: The agent's stream, on the policy's device.

        Returns:
            P tuples of K completions.

        Raises:
            RolloutError: The model returns no cache, or its probabilities are not finite.
        """
        completions_P_K: dict[int, tuple[Completion, ...]] = {}
        for batch in self._batches(prompts):
            with self._autocast():
                tokens = self._decode_loop([prompts[p] for p in batch], num_completions, sampling, rng)
            rows = [self._completion(row) for row in tokens.tolist()]
            for place, p in enumerate(batch):
                completions_P_K[p] = tuple(rows[place * num_completions : (place + 1) * num_completions])
        return [completions_P_K[p] for p in range(len(prompts))]

    def _batches(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """Indices of prompts sampled together: all of them, or those of one length.

        A model that takes no position ids may count padding as positions, so that it must not be padded.
        """
        if self._takes_positions:
            return [list(range(len(prompts)))]
        by_length: dict[int, list[int]] = {}
        for p, prompt in enumerate(prompts):
            by_length.setdefault(len(prompt.token_ids), []).append(p)
        return list(by_length.values())

    def _decode_loop(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, rng: torch.Generator
    ) -> torch.Tensor:
        """[P * K, T] sampled ids of P prompts; what follows a row's first end token is meaningless."""
        input_ids, mask = left_padded([prompt.token_ids for prompt in prompts], self.device)
        output = self._forward(input_ids, mask, cache=None)
        cache = output.get(self._cache_name)
        if cache is None:
            raise RolloutError(f"{type(self.model).__name__} returns no key-value cache, so it cannot be sampled")
        try:
            cache.batch_repeat_interleave(num_completions)
        except AttributeError as error:
            raise RolloutError(
                f"{type(self.model).__name__} keeps a recurrent state, which this version cannot sample from"
            ) from error
        logits = output.logits[:, -1].repeat_interleave(num_completions, dim=0)
        mask = mask.repeat_interleave(num_completions, dim=0)
        warpers = sampling_warpers(sampling)
        end_ids = torch.tensor(sorted(self.end_ids), dtype=torch.long, device=self.device)
        ended = torch.zeros(len(mask), dtype=torch.bool, device=self.device)
        sampled = []
        for step in range(sampling.max_new_tokens):
            tokens = draw(warpers(input_ids, logits.float()), rng)
            sampled.append(tokens)
            ended |= torch.isin(tokens, end_ids)
            if step + 1 == sampling.max_new_tokens or bool(ended.all()):
                break
            mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
            logits = self._forward(tokens.unsqueeze(1), mask, cache=cache).logits[:, -1]
        return torch.stack(sampled, dim=1)

    def _forward(self, input_ids: torch.Tensor, mask: torch.Tensor, cache: Any) -> Any:
        """One step with a cache; `mask` covers the cached tokens too, True where a token is real."""
        arguments: dict[str, Any] = {"input_ids": input_ids, "attention_mask": mask, "use_cache": True}
        if self._takes_positions:
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
            arguments["position_ids"] = positions[:, -input_ids.shape[1] :]
        if self._takes_logits_to_keep:
            arguments["logits_to_keep"] = 1
        return self.model(**arguments, **{self._cache_name: cache})

    def _completion(self, tokens: list[int]) -> Completion:
        end = next((t for t, token in enumerate(tokens) if token in self.end_ids), None)
        if end is None:
            return Completion(text=self.decode(tokens), token_ids=tuple(tokens), finished=False)
        return Completion(text=self.decode(tokens[:end]), token_ids=tuple(tokens[: end + 1]), finished=True)

    def token_log_probs(self, prompt: Prompt, completions: Sequence[Completion]) -> torch.Tensor:
        """Scores the sampled ids under the prompt ids they were sampled from.

        Returns:
            [K, T] log-probabilities in nats at temperature 1, T the longest completion; 0 beyond a row's end.
        """
        num_tokens = [len(completion.token_ids) for completion in completions]
        T = max(num_tokens)
        rows = [(*prompt.token_ids, *completion.token_ids) for completion in completions]
        input_ids, mask = right_padded(rows, self.device)
        arguments: dict[str, Any] = {"input_ids": input_ids, "attention_mask": mask, "use_cache": False}
        if self._takes_positions:
            arguments["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)  # the very ones of sampling
        if self._takes_logits_to_keep:
            arguments["logits_to_keep"] = T + 1
        with self._autocast():
            logits = self.model(**arguments).logits
        scored = token_log_probs(logits[:, -T - 1 : -1], input_ids[:, -T:])
        beyond = torch.arange(T, device=self.device) >= torch.tensor(num_tokens, device=self.device).unsqueeze(1)
        return scored.masked_fill(beyond, 0.0)

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


def left_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[P, T] ids and their mask (1 where a token is real), padded on the left with id 0, which is masked."""
    T = max(len(row) for row in rows)
    input_ids = [[0] * (T - len(row)) + list(row) for row in rows]
    mask = [[0] * (T - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(input_ids, device=device), torch.tensor(mask, device=device)


def right_padded(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[P, T] ids and their mask (1 where a token is real), padded on the right with id 0, which is masked."""
    T = max(len(row) for row in rows)
    input_ids = [list(row) + [0] * (T - len(row)) for row in rows]
    mask = [[1] * len(row) + [0] * (T - len(row)) for row in rows]
    return torch.tensor(input_ids, device=device), torch.tensor(mask, device=device)


def sampling_warpers(sampling: Sampling) -> LogitsProcessorList:
    """Temperature, then top-k, then top-p, as transformers applies them; those that are off are left out."""
    warpers = LogitsProcessorList()
    if sampling.temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k is not None:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    return warpers


def draw(logits: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    """One token per row from [P, V] logits.

    Raises:
        RolloutError: A probability is not finite.
    """
    probabilities = torch.softmax(logits, dim=-1)
    if not bool(torch.isfinite(probabilities).all()):
        raise RolloutError("the model's probabilities are not finite: its weights have diverged or were loaded wrongly")
    return torch.multinomial(probabilities, num_samples=1, generator=rng).squeeze(1)


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
