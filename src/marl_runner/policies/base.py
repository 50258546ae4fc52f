"""The interface between the algorithm and a language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from marl_runner.types import Completion, Prompt, Row, Sampling


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
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, seeds: Sequence[int]
    ) -> list[tuple[Completion, ...]]:
        """Samples K answers to each prompt; they depend on the prompt's seed, not on the other prompts."""
        ...

    def token_log_probs(self, rows: Sequence[Row]) -> torch.Tensor:
        """[R, T] log-probabilities in nats of each completion's tokens, 0 beyond its end; with gradient."""
        ...

    def num_scored_tokens(self, rows: Sequence[Row]) -> int:
        """Tokens, padding included, that `token_log_probs` computes for these rows at once."""
        ...

    def weights_changed(self) -> None:
        """Told after every update: what was derived from the weights is out of date."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]: ...

    def frozen_copy(self, device: torch.device) -> Policy:
        """A copy that will not change, for the reference penalty."""
        ...

    def save(self, folder: Path) -> None: ...
