"""Prompts that fit, and completions drawn by every agent of a team."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch

from marl_runner.errors import DataError, RolloutError
from marl_runner.micro_batches import micro_batches
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
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
    places_P: Sequence[Sequence[int]],
    num_completions: int,
    sampling: Sampling,
    stream: Stream,
) -> list[list[tuple[Completion, ...]]]:
    """Every agent answers its prompt of each of P nodes, in one batch.

    Args:
        team: The agents; concurrent ones sample at the same time.
        prompts_P_N: Per node, each agent's prompt.
        places_P: Per node, the numbers that name its random stream: what is drawn there depends on nothing else.
        num_completions: K answers to each prompt.
        sampling: Every sampling field.
        stream: Training and evaluation draw from streams of their own.

    Returns:
        [n][p] → K completions; with their reference penalty when training samples are drawn against a reference.
    """

    def answer(agent: Agent) -> list[tuple[Completion, ...]]:
        prompts_P = [prompts_N[agent.index] for prompts_N in prompts_P_N]
        seeds_P = [derive_seed(agent.seed, stream, agent.index, *place) for place in places_P]
        completions_P_K = agent.policy.generate(prompts_P, num_completions, sampling, seeds_P)
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
    measured: list[Completion] = []
    rows = [(prompt, completion) for completion in completions_K]
    for part in micro_batches(agent.policy, rows, agent.micro_batch_tokens):
        policy = agent.policy.token_log_probs(part).double()
        delta = agent.reference.token_log_probs(part).to(policy) - policy
        kl_R = (torch.expm1(delta) - delta).sum(dim=1).tolist()
        measured += [replace(completion, reference_kl=kl) for (_, completion), kl in zip(part, kl_R, strict=True)]
    return tuple(measured)
