"""One update: minibatches of drained buffers, one optimiser step each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from marl_runner.errors import NumericalError
from marl_runner.loss import policy_gradient_loss
from marl_runner.setting_rules import COMPAT
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Agent, Learner
from marl_runner.types import Completion, Sample, UpdateStats


def update_learner(
    learner: Learner, samples_N: Sequence[Sequence[Sample]], config: MAGRPOConfig
) -> list[tuple[UpdateStats, ...]]:
    """Shuffles the samples of each agent's drained buffer and takes one optimiser step per minibatch.

    loss = mean over samples of weight * mean over K of (-A_k * sum over T of log pi(token))

    The losses of agents that share their weights are added, minibatch by minibatch.

    Args:
        learner: The weights, and the agents that act by them.
        samples_N: The drained buffer of each of these agents.
        config: The run's settings.

    Returns:
        Per optimiser step, one entry for each agent that had a minibatch.

    Raises:
        NumericalError: A loss or gradient is not finite; the weights are as they were before that step.
    """
    batches_N = [
        list(minibatches(agent, samples, config)) for agent, samples in zip(learner.agents, samples_N, strict=True)
    ]
    return [update_step(learner, step_N, config) for step_N in itertools.zip_longest(*batches_N, fillvalue=[])]


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


def update_step(learner: Learner, batch_N: Sequence[Sequence[Sample]], config: MAGRPOConfig) -> tuple[UpdateStats, ...]:
    """One optimiser step on one minibatch of each agent, its gradient added up over micro-batches of completions."""
    learner.optimizer.zero_grad(set_to_none=True)
    losses_N = [
        backward_batch(learner, agent, batch, config) for agent, batch in zip(learner.agents, batch_N, strict=True)
    ]
    grad_norm = clipped_grad_norm(learner, batch_N, config)
    rate = learner.scheduler.get_last_lr()[0]
    learner.optimizer.step()
    learner.scheduler.step()
    learner.optimizer.zero_grad(set_to_none=True)
    return tuple(
        UpdateStats(agent.index, loss, grad_norm, sum(trained_tokens(sample) for sample in batch), rate)
        for agent, batch, loss in zip(learner.agents, batch_N, losses_N, strict=True)
        if batch
    )


def backward_batch(learner: Learner, agent: Agent, batch: Sequence[Sample], config: MAGRPOConfig) -> float:
    """Adds the gradient of one agent's minibatch; returns its loss.

    Raises:
        NumericalError: The loss is not finite; the gradients are dropped.
    """
    loss = 0.0
    for sample in batch:
        part = backward(agent, sample, scale=sample.weight / len(batch), config=config)
        if not math.isfinite(part):
            learner.optimizer.zero_grad(set_to_none=True)
            raise NumericalError(
                f"loss of agent {agent.index} is {part} at turn {sample.turn + 1}, env_step {sample.env_step}; "
                "the weights were left as they were: lower the learning rate or the scale of the rewards"
            )
        loss += part
    return loss


def trained_tokens(sample: Sample) -> int:
    """Tokens of the completions that did not abstain."""
    pairs = zip(sample.completions_K, sample.advantages_K, strict=True)
    return sum(len(completion.token_ids) for completion, advantage in pairs if advantage is not None)


def backward(agent: Agent, sample: Sample, scale: float, config: MAGRPOConfig) -> float:
    """Adds one sample's share of the gradient; returns its share of the loss.

    Completions that abstained are left out, of the mean over K too. Each micro-batch is freed before the next
    begins, so that peak memory does not grow with K. Under compat a group whose completions all have one token adds
    no gradient at all, not even zero: the last token is dropped, so nothing is left to score.
    """
    if config.compat == COMPAT and all(len(completion.token_ids) < 2 for completion in sample.completions_K):
        return 0.0
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


def clipped_grad_norm(learner: Learner, batch_N: Sequence[Sequence[Sample]], config: MAGRPOConfig) -> float:
    """Euclidean norm of the gradient before it is clipped to `max_grad_norm`; 0 where nothing has a gradient."""
    limit = math.inf if config.max_grad_norm is None else config.max_grad_norm
    norm = float(torch.nn.utils.get_total_norm([weight.grad for weight in learner.weights if weight.grad is not None]))
    if not math.isfinite(norm):
        learner.optimizer.zero_grad(set_to_none=True)
        samples = [sample for batch in batch_N for sample in batch]
        turns = sorted({sample.turn + 1 for sample in samples})
        names = " and ".join(str(agent.index) for agent in learner.agents)
        raise NumericalError(
            f"gradient of agent {names} has norm {norm} at turns {turns}, env_step "
            f"{max(sample.env_step for sample in samples)}; the weights were left as they were: "
            "lower the learning rate or the scale of the rewards"
        )
    if norm > limit:
        torch.nn.utils.clip_grads_with_norm_(learner.weights, limit, torch.tensor(norm))
    return norm
