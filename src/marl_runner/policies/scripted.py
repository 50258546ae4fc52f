"""A policy that answers from a script and learns for real: one logit per token, whatever the prompt.

Its log-probabilities can be worked out by hand, which makes it the backend of the exact tests; it needs no
tokenizer and no checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from marl_runner.loss import token_log_probs
from marl_runner.types import Completion, Prompt, Row, Sampling


class ScriptedPolicy:
    """Replays given token ids as its completions; scores any tokens by one softmax over `logits_V`.

    Args:
        script: Token ids of each completion, in the order they will be asked for.
        alphabet: One character per token id; the last id is the end of sequence and has no text.
        context_length: Most tokens of prompt and completion together; None for no limit.
    """

    def __init__(
        self, script: Iterable[Sequence[int]], alphabet: str = "abcdefghij", context_length: int | None = None
    ) -> None:
        self.alphabet = alphabet
        self.end_id = len(alphabet)
        self.context_length = context_length
        self.logits_V = torch.nn.Parameter(torch.zeros(len(alphabet) + 1, dtype=torch.float64))
        self.requests: list[tuple[str, ...]] = []
        self._script: Iterator[Sequence[int]] = iter(script)

    @property
    def device(self) -> torch.device:
        """Always the CPU."""
        return torch.device("cpu")

    def encode(self, text: str) -> tuple[int, ...]:
        """One token per character, beyond the ids of completions; prompts play no part in the scores."""
        return tuple(self.end_id + 1 + ord(character) for character in text)

    def prompt_text(self, token_ids: Sequence[int]) -> str:
        """The characters that `encode` made the ids from."""
        return "".join(chr(token - self.end_id - 1) for token in token_ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a completion's ids, without the end of sequence."""
        return "".join(self.alphabet[token] for token in token_ids if token != self.end_id)

    def generate(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, seeds: Sequence[int]
    ) -> list[tuple[Completion, ...]]:
        """The next `num_completions` entries of the script for each prompt.

        Raises:
            IndexError: The script has no more entries.
        """
        self.requests.append(tuple(prompt.text for prompt in prompts))
        return [tuple(self._next() for _ in range(num_completions)) for _ in prompts]

    def _next(self) -> Completion:
        try:
            token_ids = tuple(next(self._script))
        except StopIteration as error:
            raise IndexError("the script of this ScriptedPolicy has no more completions") from error
        return Completion(self.decode(token_ids), token_ids, finished=token_ids[-1:] == (self.end_id,))

    def token_log_probs(self, rows: Sequence[Row]) -> torch.Tensor:
        """[R, T] log softmax(logits_V)[token], 0 beyond a completion's end."""
        T = max(len(completion.token_ids) for _, completion in rows)
        scored_R = []
        for _, completion in rows:
            ids = torch.tensor(completion.token_ids, dtype=torch.long)
            logits = self.logits_V.expand(len(ids), -1)
            scored = token_log_probs(logits, ids) if len(ids) else self.logits_V.new_zeros(0)
            scored_R.append(torch.nn.functional.pad(scored, (0, T - len(ids))))
        return torch.stack(scored_R)

    def num_scored_tokens(self, rows: Sequence[Row]) -> int:
        """The completions' tokens."""
        return sum(len(completion.token_ids) for _, completion in rows)

    def weights_changed(self) -> None:
        """Nothing is derived from the weights."""

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """The one vector of logits."""
        return [self.logits_V]

    def frozen_copy(self, device: torch.device) -> ScriptedPolicy:
        """A copy of the logits, with an empty script."""
        other = ScriptedPolicy([], self.alphabet, self.context_length)
        other.logits_V = torch.nn.Parameter(self.logits_V.detach().clone(), requires_grad=False)
        return other

    def save(self, folder: Path) -> None:
        """Writes the logits to `folder/scripted.json`."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scripted.json").write_text(json.dumps(self.logits_V.tolist()))
