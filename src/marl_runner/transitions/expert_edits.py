"""A language model outside the team proposes edits, and each agent is asked for a better answer with them."""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from marl_runner.errors import ConfigError, TransitionError
from marl_runner.expert import Endpoint, Expert, check_address, key_of
from marl_runner.templates import filled, missing_names

log = logging.getLogger(__name__)

NEEDED = {
    "expert_template": ("prompt", "answers", "agent"),
    "answer_template": ("agent", "answer"),
    "agent_template": ("prompt", "answer", "edits"),
    "fallback_template": ("prompt", "answer"),
}
"""Template → the names in braces that it must have."""
ON_FAILURE = ("error", "revise")


@dataclass(frozen=True)
class ExpertEdits:
    """Asks the expert once for each agent, and fills `agent_template` with what it proposes.

    One question for each agent, all asked at the same time: its answer is the edits as they are, and no list that a
    model wrote has to be taken apart. Each question shows the answers of the whole team.

    Attributes:
        base_url: Address of an OpenAI-compatible endpoint, to which `/chat/completions` is added; without a password.
        model: Name of the model there.
        api_key_env: Name of the environment variable that holds the key; None sends none.
        temperature: >= 0; None leaves it to the endpoint.
        max_tokens: Most tokens of the edits for one agent, >= 1; None leaves it to the endpoint.
        timeout_s: Most seconds of silence in one try, > 0. With all tries and waits a question takes at most
            timeout_s + max_retries * (timeout_s + 8).
        max_retries: Tries after the first, >= 0: after a lost connection, silence, or status 408, 409, 429 or 5xx.
        on_failure: What a question without an answer does: "error" ends the run, "revise" uses `fallback_template`.
        expert_template: What the expert is asked, with `{prompt}` (the task), `{answers}` (all agents'), `{agent}` (the
            number of the agent whose answer is to be edited, from 0) and, if wanted, `{answer}` (its own).
        answer_template: One agent's part of `{answers}`, with `{agent}` and `{answer}`.
        agent_template: The agent's next prompt, with `{prompt}`, `{answer}` (its own last) and `{edits}`.
        fallback_template: Its next prompt where there are no edits, with `{prompt}` and `{answer}`.
    """

    base_url: str
    model: str
    api_key_env: str | None
    temperature: float | None
    max_tokens: int | None
    timeout_s: float
    max_retries: int
    on_failure: str
    expert_template: str
    answer_template: str
    agent_template: str
    fallback_template: str

    def __post_init__(self) -> None:
        if importlib.util.find_spec("openai") is None:
            raise ConfigError("transition=expert_edits needs the package openai: pip install marl-runner[expert]")
        check_address(self.base_url, "transition.base_url")
        if not self.model.strip():
            raise ConfigError("transition.model is empty: give the name of a model at transition.base_url")
        if self.temperature is not None and not 0 <= self.temperature < math.inf:
            raise ConfigError(f"transition.temperature must be >= 0 or null, got {self.temperature}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"transition.max_tokens must be >= 1 or null, got {self.max_tokens}")
        if not 0 < self.timeout_s < math.inf:
            raise ConfigError(f"transition.timeout_s must be > 0 and finite, got {self.timeout_s}")
        if self.max_retries < 0:
            raise ConfigError(f"transition.max_retries must be >= 0, got {self.max_retries}")
        if self.on_failure not in ON_FAILURE:
            raise ConfigError(f"transition.on_failure must be error or revise, got {self.on_failure!r}")
        for template, names in NEEDED.items():
            missing = missing_names(vars(self)[template], names)
            if missing:
                raise ConfigError(f"transition.{template} has no {missing}")
        _ = self._expert  # reads the key now, so that a run without it ends before anything is loaded

    @cached_property
    def _expert(self) -> Expert:
        return Expert(
            Endpoint(
                base_url=self.base_url,
                api_key=key_of(self.api_key_env, "transition.api_key_env"),
                model=self.model,
                temperature=self.temperature,
                max_tokens=self.max_tokens,
                timeout_s=self.timeout_s,
                max_retries=self.max_retries,
            )
        )

    @property
    def counts(self) -> dict[str, int]:
        """`calls`: edits asked for; `cache_hits`: of these, not sent because they were known; `failures`: of these, not
        given; `retries`: requests sent again."""
        return self._expert.counts

    def __call__(self, prompt: str, agent_completions: Sequence[str]) -> list[str]:
        """One prompt per agent. Braces inside the task, an answer or the edits are left as they are.

        Raises:
            TransitionError: The expert did not answer, and `on_failure` is "error".
        """
        answers = "\n\n".join(
            filled(self.answer_template, {"agent": str(agent), "answer": answer})
            for agent, answer in enumerate(agent_completions)
        )
        edits_N = self._expert.ask(
            [
                filled(
                    self.expert_template, {"prompt": prompt, "answers": answers, "agent": str(agent), "answer": answer}
                )
                for agent, answer in enumerate(agent_completions)
            ]
        )
        self._check([edits for edits in edits_N if isinstance(edits, TransitionError)])
        return [
            filled(self.fallback_template, {"prompt": prompt, "answer": answer})
            if isinstance(edits, TransitionError)
            else filled(self.agent_template, {"prompt": prompt, "answer": answer, "edits": edits})
            for edits, answer in zip(edits_N, agent_completions, strict=True)
        ]

    def _check(self, failures: Sequence[TransitionError]) -> None:
        if failures and self.on_failure == "error":
            raise failures[0]
        if failures and self.counts["failures"] == len(failures):
            # The first of the run.
            log.warning("%s; on_failure=revise: such agents get no edits; counted, and not said again", failures[0])
