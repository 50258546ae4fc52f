"""One update: minibatches of drained buffers, one optimiser step each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch

from marl_runner.errors import NumericalError
from marl_runner.loss import policy_gradient_loss
from marl_runner.micro_batches import micro_batches
from marl_runner.setting_rules import COMPAT
from marl_runner.settings import MAGRPOConfig
from marl_runner.stopping import REQUEST
from marl_runner.team import Agent, Learner
from marl_runner.types import Completion, Row, Sample, UpdateStats


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
    try:
        scored_N = [backward_batch(agent, batch, config) for agent, batch in zip(learner.agents, batch_N, strict=True)]
        grad_norm = clipped_grad_norm(learner, batch_N, config)
    except NumericalError:
        learner.optimizer.zero_grad(set_to_none=True)
        raise
    rate = learner.scheduler.get_last_lr()[0]
    learner.optimizer.step()
    learner.scheduler.step()
    learner.optimizer.zero_grad(set_to_none=True)
    for agent in learner.agents:
        agent.policy.weights_changed()
    return tuple(
        UpdateStats(
            agent.index, scored.loss, grad_norm, sum(map(trained_tokens, batch)), rate, log_prob_mismatch(scored)
        )
        for agent, batch, scored in zip(learner.agents, batch_N, scored_N, strict=True)
        if batch
    )


@dataclass(frozen=True)
class Term:
    """One completion's term of the loss, -weight * log pi(completion)."""

    sample: Sample
    completion: Completion
    weight: float


@dataclass(frozen=True)
class Scored:
    """The loss of one agent's minibatch, and the log-probability of each completion in it."""

    loss: float
    terms: list[Term]
    log_probs: list[float]


def backward_batch(agent: Agent, batch: Sequence[Sample], config: MAGRPOConfig) -> Scored:
    """Adds the gradient of one agent's minibatch.

    Each micro-batch is freed before the next begins, so that peak memory does not grow with K.

    Raises:
        NumericalError: The loss is not finite.
    """
    terms = with_signal([term for sample in batch for term in loss_terms(sample, len(batch), config)])
    rows = [(term.sample.prompt, term.completion) for term in terms]
    log_probs: list[float] = []
    loss = 0.0
    for part in micro_batches(agent.policy, rows, agent.micro_batch_tokens):
        REQUEST.check()
        terms_R = terms[len(log_probs) : len(log_probs) + len(part)]
        log_probs_R_T = agent.policy.token_log_probs(part)
        loss += backward(agent, terms_R, scored_tokens(log_probs_R_T, part, config).sum(dim=1))
        log_probs += log_probs_R_T.detach().sum(dim=1).tolist()
    return Scored(loss, terms, log_probs)


def backward(agent: Agent, terms_R: Sequence[Term], log_probs_R: torch.Tensor) -> float:
    """Adds the gradient of some terms, from the log-probabilities [R] of their completions; returns their sum."""
    weights_R = torch.tensor([term.weight for term in terms_R], dtype=log_probs_R.dtype, device=log_probs_R.device)
    loss_R = policy_gradient_loss(log_probs_R, weights_R)
    for term, value in zip(terms_R, loss_R.tolist(), strict=True):
        if not math.isfinite(value):
            raise NumericalError(
                f"loss of agent {agent.index} is {value} at turn {term.sample.turn + 1}, env_step "
                f"{term.sample.env_step}; the weights were left as they were: lower the learning rate or the scale of "
                "the rewards"
            )
    loss = loss_R.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach())


def loss_terms(sample: Sample, num_samples: int, config: MAGRPOConfig) -> list[Term]:
    """The terms of one of `num_samples` samples: completions that abstained are left out, of the mean over K too.

    Under compat a group whose completions all have one token has none: the last token is dropped, so nothing is left.
    """
    if config.compat == COMPAT and all(len(completion.token_ids) < 2 for completion in sample.completions_K):
        return []
    pairs = zip(sample.completions_K, sample.advantages_K, strict=True)
    present = [(completion, advantage) for completion, advantage in pairs if advantage is not None]
    scale = sample.weight / num_samples / len(present)
    return [Term(sample, completion, advantage * scale) for completion, advantage in present]


def with_signal(terms: list[Term]) -> list[Term]:
    """The terms that are not zero; of none but zeros the shortest, whose zero gradient lets AdamW decay the weights."""
    if any(term.weight for term in terms):
        return [term for term in terms if term.weight]
    return sorted(terms, key=lambda term: len(term.sample.prompt.token_ids) + len(term.completion.token_ids))[:1]


def scored_tokens(log_probs_R_T: torch.Tensor, rows: Sequence[Row], config: MAGRPOConfig) -> torch.Tensor:
    """[R, T] what the loss is made of: every token; under compat all but each completion's last."""
    if config.compat != COMPAT:
        return log_probs_R_T
    return without_last_token(log_probs_R_T, [completion for _, completion in rows])


def log_prob_mismatch(scored: Scored) -> float | None:
    """Mean |log-probability scored - sampled| per token, in nats; None where the sampler did not measure it."""
    differences = [
        abs(log_prob - term.completion.log_prob) / len(term.completion.token_ids)
        for term, log_prob in zip(scored.terms, scored.log_probs, strict=True)
        if term.completion.log_prob is not None
    ]
    return fmean(differences) if differences else None


def trained_tokens(sample: Sample) -> int:
    """Tokens of the completions that did not abstain."""
    pairs = zip(sample.completions_K, sample.advantages_K, strict=True)
    return sum(len(completion.token_ids) for completion, advantage in pairs if advantage is not None)


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
