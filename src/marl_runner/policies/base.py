"""The interface between the algorithm and a language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from marl_runner.types import Completion, Prompt, Sampling


@runtime_checkable
class Policy(Protocol):
    """A language model that can sample completions and score the very tokens it sampled."""

    @property
    def device(self) -> torch.device: ...

    @property
    def context_length(self) -> int | None:
        """Most tokens of prompt and completion together; None when there is no limit."""
        ...

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of a prompt, with at most one beginning-of-sequence token."""
        ...

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """Text of a prompt's token ids: what the model sees."""
        ...

    def generate(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, rng: torch.Generator
    ) -> list[tuple[Completion, ...]]:
        """Samples `num_completions` answers to each prompt, in one batch."""
        ...

    def token_log_probs(self, prompt: Prompt, completions: Sequence[Completion]) -> torch.Tensor:
        """[K, T] log-probabilities in nats of each completion's tokens, 0 beyond its end; with gradient."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...

    def frozen_copy(self, device: torch.device) -> Policy:
        """A copy that will not change, for the reference penalty."""
        ...

    def save(self, folder: Path) -> None: ...
