"""Prompts that fit, and completions drawn by every agent of a team."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from marl_runner.errors import DataError, RolloutError
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Agent, Team
from marl_runner.types import Completion, Prompt, Sampling

Stream = Literal["sample", "eval"]


def prompt_limit(context_length: int | None, config: MAGRPOConfig) -> int | None:
    """Most tokens of a prompt: what the context leaves beside `max_new_tokens`, or `max_prompt_tokens` if less."""
    room = None if context_length is None else context_length - config.max_new_tokens
    limits = [limit for limit in (room, config.max_prompt_tokens) if limit is not None]
    return min(limits) if limits else None


def overlong_message(num_tokens: int, limit: int, context_length: int | None, config: MAGRPOConfig, where: str) -> str:
    """One sentence with the numbers and the ways out, used before and during training."""
    context = "" if context_length is None else f", context {context_length}"
    return (
        f"prompt of {num_tokens} tokens is longer than {limit} (max_new_tokens {config.max_new_tokens}{context}, "
        f"max_prompt_tokens {config.max_prompt_tokens}) at {where}; shorten it, lower trainer.max_new_tokens, "
        "or set trainer.overlong_prompt=truncate or drop"
    )


def fit_prompt(agent: Agent, text: str, config: MAGRPOConfig, where: str) -> Prompt | None:
    """Encodes a prompt under the one overlong-prompt rule; generation and loss both use the result.

    Returns:
        The prompt; cut to its tail, text too, by `overlong_prompt=truncate`; None by `drop`.

    Raises:
        RolloutError: It is too long under `error`, has no tokens, or cannot be encoded.
    """
    try:
        token_ids = agent.policy.encode(text)
    except DataError as error:
        raise RolloutError(f"{where}, agent {agent.index}: {error}") from error
    if not token_ids:
        raise RolloutError(f"the prompt of agent {agent.index} has no tokens at {where}: {text!r}")
    limit = prompt_limit(agent.policy.context_length, config)
    if limit is None or len(token_ids) <= limit:
        return Prompt(text, token_ids)
    if config.overlong_prompt == "truncate":
        tail = token_ids[-limit:]
        return Prompt(agent.policy.prompt_text(tail), tail)
    if config.overlong_prompt == "drop":
        return None
    where = f"{where}, agent {agent.index}"
    raise RolloutError(overlong_message(len(token_ids), limit, agent.policy.context_length, config, where))


def sample_team(
    team: Team,
    prompts_P_N: Sequence[Sequence[Prompt]],
    num_completions: int,
    sampling: Sampling,
    max_rows: int,
    stream: Stream,
) -> list[list[tuple[Completion, ...]]]:
    """Every agent answers its prompt of each of P nodes.

    Args:
        team: The agents; concurrent ones sample at the same time.
        prompts_P_N: Per node, each agent's prompt.
        num_completions: K answers to each prompt.
        sampling: Every sampling field.
        max_rows: Most completions of one batch; more are sampled in chunks.
        stream: Which random stream of each agent is used.

    Returns:
        [n][p] → K completions; with their reference penalty when training samples are drawn against a reference.
    """

    def answer(agent: Agent) -> list[tuple[Completion, ...]]:
        prompts_P = [prompts_N[agent.index] for prompts_N in prompts_P_N]
        rng = agent.sample_rng if stream == "sample" else agent.eval_rng
        chunk = max(1, max_rows // num_completions)
        completions_P_K: list[tuple[Completion, ...]] = []
        for start in range(0, len(prompts_P), chunk):
            completions_P_K += agent.policy.generate(prompts_P[start : start + chunk], num_completions, sampling, rng)
        if agent.reference is None or stream == "eval":
            return completions_P_K
        return [
            with_reference_kl(agent, prompt, completions_K)
            for prompt, completions_K in zip(prompts_P, completions_P_K, strict=True)
        ]

    return team.map_agents(answer)


@torch.no_grad()
def with_reference_kl(agent: Agent, prompt: Prompt, completions_K: Sequence[Completion]) -> tuple[Completion, ...]:
    """Measures each completion's k3 estimate against the agent's frozen reference, in nats.

    Per token exp(Δ) - Δ - 1 with Δ = log π_ref - log π, summed over the completion. Schulman (2020),
    "Approximating KL divergence". In float64 by expm1: the difference of two nearly equal numbers, which float32
    would round to a negative one.
    """
    assert agent.reference is not None
    measured = []
    for start in range(0, len(completions_K), agent.micro_batch_size):
        part = completions_K[start : start + agent.micro_batch_size]
        policy = agent.policy.token_log_probs(prompt, part).double()
        delta = agent.reference.token_log_probs(prompt, part).to(policy) - policy
        kl_K = (torch.expm1(delta) - delta).sum(dim=1).tolist()
        measured += [
            Completion(completion.text, completion.token_ids, completion.finished, kl)
            for completion, kl in zip(part, kl_K, strict=True)
        ]
    return tuple(measured)
