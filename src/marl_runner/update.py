"""One agent's update: minibatches of a drained buffer, one optimiser step each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from marl_runner.errors import NumericalError
from marl_runner.loss import policy_gradient_loss
from marl_runner.settings import COMPAT, MAGRPOConfig
from marl_runner.team import Agent
from marl_runner.types import Completion, Sample, UpdateStats


def update_agent(agent: Agent, samples: Sequence[Sample], config: MAGRPOConfig) -> list[UpdateStats]:
    """Shuffles the samples of a drained buffer and takes one optimiser step per minibatch.

    loss = mean over samples of weight * mean over K of (-A_k * sum over T of log pi(token))

    Raises:
        NumericalError: A loss or gradient is not finite; the weights are as they were before that step.
    """
    return [update_step(agent, batch, config) for batch in minibatches(agent, samples, config)]


def minibatches(agent: Agent, samples: Sequence[Sample], config: MAGRPOConfig) -> Iterator[list[Sample]]:
    """Cuts the shuffled samples into minibatches of `train_batch_size`; under compat, turn by turn."""
    pools = [list(samples)]
    if config.compat == COMPAT:
        by_turn = sorted(samples, key=lambda sample: sample.turn)
        pools = [list(group) for _, group in itertools.groupby(by_turn, key=lambda sample: sample.turn)]
    size = config.train_batch_size or config.rollout_buffer_size
    for pool in pools:
        agent.update_rng.shuffle(pool)
        for start in range(0, len(pool), size):
            yield pool[start : start + size]


def update_step(agent: Agent, batch: Sequence[Sample], config: MAGRPOConfig) -> UpdateStats:
    """One optimiser step on one minibatch, its gradient added up over micro-batches of completions."""
    agent.optimizer.zero_grad(set_to_none=True)
    loss, tokens = 0.0, 0
    for sample in batch:
        part = backward(agent, sample, scale=sample.weight / len(batch), config=config)
        if not math.isfinite(part):
            agent.optimizer.zero_grad(set_to_none=True)
            raise NumericalError(
                f"loss of agent {agent.index} is {part} at turn {sample.turn + 1}, env_step {sample.env_step}; "
                "the weights were left as they were: lower the learning rate or the scale of the rewards"
            )
        loss += part
        tokens += trained_tokens(sample)
    grad_norm = clipped_grad_norm(agent, batch, config)
    rate = agent.scheduler.get_last_lr()[0]
    agent.optimizer.step()
    agent.scheduler.step()
    agent.optimizer.zero_grad(set_to_none=True)
    return UpdateStats(agent.index, loss, grad_norm, tokens, rate)


def trained_tokens(sample: Sample) -> int:
    """Tokens of the completions that did not abstain."""
    pairs = zip(sample.completions_K, sample.advantages_K, strict=True)
    return sum(len(completion.token_ids) for completion, advantage in pairs if advantage is not None)


def backward(agent: Agent, sample: Sample, scale: float, config: MAGRPOConfig) -> float:
    """Adds one sample's share of the gradient; returns its share of the loss.

    Completions that abstained are left out, of the mean over K too. Each micro-batch is freed before the next
    begins, so that peak memory does not grow with K.
    """
    present = [
        (completion, advantage)
        for completion, advantage in zip(sample.completions_K, sample.advantages_K, strict=True)
        if advantage is not None
    ]
    total = 0.0
    for start in range(0, len(present), config.micro_batch_size):
        completions, advantages = zip(*present[start : start + config.micro_batch_size], strict=True)
        log_probs_K_T = agent.policy.token_log_probs(sample.prompt, completions)
        if config.compat == COMPAT:
            log_probs_K_T = without_last_token(log_probs_K_T, completions)
        log_probs = log_probs_K_T.sum(dim=1)
        weights = torch.tensor(advantages, dtype=log_probs.dtype, device=log_probs.device)
        loss = policy_gradient_loss(log_probs, weights) * (scale / len(present))
        value = float(loss.detach())
        if not math.isfinite(value):
            return value
        loss.backward()  # type: ignore[no-untyped-call]
        total += value
    return total


def without_last_token(log_probs_K_T: torch.Tensor, completions: Sequence[Completion]) -> torch.Tensor:
    """Drops each completion's last token from the sum, as comlrl 1.4 does."""
    last = torch.tensor([len(completion.token_ids) - 1 for completion in completions], device=log_probs_K_T.device)
    positions = torch.arange(log_probs_K_T.shape[1], device=log_probs_K_T.device)
    return log_probs_K_T.masked_fill(positions >= last.unsqueeze(1), 0.0)


def clipped_grad_norm(agent: Agent, batch: Sequence[Sample], config: MAGRPOConfig) -> float:
    """Euclidean norm of the gradient before it is clipped to `max_grad_norm`."""
    parameters = [parameter for parameter in agent.policy.parameters() if parameter.grad is not None]
    limit = math.inf if config.max_grad_norm is None else config.max_grad_norm
    norm = float(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
    if not math.isfinite(norm):
        agent.optimizer.zero_grad(set_to_none=True)
        turns = sorted({sample.turn + 1 for sample in batch})
        raise NumericalError(
            f"gradient of agent {agent.index} has norm {norm} at turns {turns}, env_step "
            f"{max(sample.env_step for sample in batch)}; the weights were left as they were: "
            "lower the learning rate or the scale of the rewards"
        )
    if norm > limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, torch.tensor(norm))
    return norm
