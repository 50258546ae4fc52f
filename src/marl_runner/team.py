"""The team: N agents, each with its policy, formatter and random streams, and the optimisers over their weights."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from marl_runner.errors import ConfigError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.policies.base import Policy
from marl_runner.policies.hf import HFPolicy
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed

Result = TypeVar("Result")

CPU_TOKENS, GPU_TOKENS = 512, 8192
"""Tokens of one scoring pass where the settings name none: enough to keep either busy."""


@dataclass
class Agent:
    """One agent.

    Attributes:
        index: Its place in the team, from 0.
        policy: Samples and scores.
        formatter: From a task to the text it is sent.
        reference: Frozen copy for the penalty, or None.
        seed: Of the run; every node's random stream is derived from it.
        update_rng: Stream that shuffles a drained buffer.
        micro_batch_tokens: Most tokens of one scoring pass.
    """

    index: int
    policy: Policy
    formatter: PromptFormatter
    reference: Policy | None
    seed: int
    update_rng: random.Random
    micro_batch_tokens: int


@dataclass
class Learner:
    """One set of weights: its optimiser, and the agents that act by it; one agent, unless several share a model.

    Attributes:
        agents: In order of their index; their gradients are added.
        weights: The trainable ones.
        optimizer: AdamW over the weights.
        scheduler: Learning-rate schedule, stepped once per optimiser step.
    """

    agents: tuple[Agent, ...]
    weights: tuple[torch.nn.Parameter, ...]
    optimizer: torch.optim.Optimizer
    scheduler: Any


class Team:
    """The agents, and how they run: one after the other, or concurrently.

    Args:
        agents: In order of their index.
        learners: Every agent is in one of them.
        concurrency: Learners that run at the same time, each in a thread of its own.
        share_cores: They compute on one CPU: torch's threads are divided among those that run at the same time.
    """

    def __init__(
        self, agents: Sequence[Agent], learners: Sequence[Learner], concurrency: int = 1, share_cores: bool = False
    ) -> None:
        self.agents = list(agents)
        self.learners = list(learners)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="learner") if concurrency > 1 else None
        self._concurrency = concurrency
        self._share_cores = share_cores

    def map_learners(self, work: Callable[[Learner], Result], learners: Sequence[Learner]) -> list[Result]:
        """Applies `work` to the given learners and returns the results in their order.

        Those that share one CPU take turns, each on all cores: hardly slower for work as large as an update, and the
        memory of one at a time. An exception of one learner is raised after the others have ended.
        """
        return self._mapped(work, learners, together=not self._share_cores)

    def map_agents(self, work: Callable[[Agent], Result]) -> list[Result]:
        """Applies `work` to every agent, at the same time where they may, and returns the results in their order.

        Agents of one learner take turns. For work that waits for memory, as sampling does: a second core then serves
        a second agent better than it does the first.
        """
        results_by_learner = self._mapped(
            lambda learner: {agent.index: work(agent) for agent in learner.agents}, self.learners, together=True
        )
        results = {index: result for results_N in results_by_learner for index, result in results_N.items()}
        return [results[agent.index] for agent in self.agents]

    def _mapped(self, work: Callable[[Learner], Result], learners: Sequence[Learner], together: bool) -> list[Result]:
        if self._pool is None or not together or len(learners) == 1:
            return [work(learner) for learner in learners]
        cores = torch.get_num_threads()
        share = max(1, cores // self._concurrency) if self._share_cores else cores
        try:
            futures = [self._pool.submit(on_share, share, work, learner) for learner in learners]
            for future in futures:
                future.exception()
        finally:
            torch.set_num_threads(cores)
        return [future.result() for future in futures]

    def save(self, folder: Path) -> None:
        """Writes each agent's model and tokenizer to `folder/agent_i`."""
        for agent in self.agents:
            agent.policy.save(folder / f"agent_{agent.index}")


def on_share(num_threads: int, work: Callable[[Learner], Result], learner: Learner) -> Result:
    """`work` with so many of torch's threads; the number is the thread's own in part, so each sets it."""
    torch.set_num_threads(num_threads)
    return work(learner)


def make_agent(
    index: int, policy: Policy, formatter: PromptFormatter, config: MAGRPOConfig, reference: Policy | None
) -> Agent:
    """Gives a policy, on its device already, its random stream and its share of memory."""
    return Agent(
        index=index,
        policy=policy,
        formatter=formatter,
        reference=reference,
        seed=config.seed,
        update_rng=random.Random(derive_seed(config.seed, "update", index)),
        micro_batch_tokens=config.micro_batch_tokens or (CPU_TOKENS if policy.device.type == "cpu" else GPU_TOKENS),
    )


def make_learners(agents: Sequence[Agent], config: MAGRPOConfig, max_updates: int | None) -> list[Learner]:
    """One learner for each set of weights.

    Args:
        agents: In order of their index.
        config: The run's settings.
        max_updates: Optimiser steps of a run of full trees, for schedules that end; None if unknown.

    Raises:
        ConfigError: An agent has no weight to train, or two share some of their weights and not all.
    """
    agents_by_weights: dict[frozenset[torch.nn.Parameter], list[Agent]] = {}
    for agent in agents:
        weights = frozenset(parameter for parameter in agent.policy.parameters() if parameter.requires_grad)
        if not weights:
            raise ConfigError(f"agent {agent.index} has no trainable weights: all of them have requires_grad=False")
        for others, owners in agents_by_weights.items():
            if weights & others and weights != others:
                raise ConfigError(
                    f"agents {owners[0].index} and {agent.index} share some of their trainable weights and not all; "
                    "share the whole model, or nothing"
                )
        agents_by_weights.setdefault(weights, []).append(agent)
    return [make_learner(sharing, config, max_updates) for sharing in agents_by_weights.values()]


def make_learner(agents: Sequence[Agent], config: MAGRPOConfig, max_updates: int | None) -> Learner:
    """One optimiser and schedule over the weights that these agents have in common."""
    weights = tuple(parameter for parameter in agents[0].policy.parameters() if parameter.requires_grad)
    optimizer = torch.optim.AdamW(weights, lr=config.agent_learning_rate, weight_decay=config.weight_decay, fused=True)
    return Learner(tuple(agents), weights, optimizer, make_scheduler(optimizer, config, max_updates))


def make_scheduler(optimizer: torch.optim.Optimizer, config: MAGRPOConfig, max_updates: int | None) -> Any:
    """The named schedule of transformers."""
    from transformers import get_scheduler

    name = config.lr_scheduler
    if name == "constant" and config.warmup_steps:
        name = "constant_with_warmup"
    return get_scheduler(name, optimizer, num_warmup_steps=config.warmup_steps, num_training_steps=max_updates)


def resolve_devices(devices: Any, count: int, name: str) -> list[torch.device]:
    """One device per agent from one entry, or from one per agent.

    Args:
        devices: A device name, a list of 1 or `count` names, or None for one shared device. "auto" is the
            next CUDA device in turn, or the CPU where there is none.
        count: Number of agents.
        name: Setting it came from, for messages.

    Raises:
        ConfigError: Another number of entries, or a device that is not there.
    """
    entries = ["auto"] * count if devices is None else [devices] if isinstance(devices, str) else list(devices)
    if len(entries) not in (1, count):
        raise ConfigError(f"{name} has {len(entries)} entries, needs 1 or {count}: {entries}")
    num_cuda = torch.cuda.device_count()
    resolved = []
    for index, entry in enumerate(entries * (count if len(entries) == 1 else 1)):
        if entry == "auto":
            place = 0 if devices is None else index % max(num_cuda, 1)
            entry = f"cuda:{place}" if num_cuda else "cpu"
        try:
            device = torch.device(entry)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(f"{name}: {entry!r} is not a device; write cpu, cuda, cuda:0 or auto") from error
        if device.type == "cuda" and (device.index or 0) >= num_cuda:
            raise ConfigError(f"{name}: {entry!r} is not there; this machine has {num_cuda} CUDA devices")
        resolved.append(device)
    return resolved


def make_policy(model: Any, tokenizer: Any, device: torch.device, config: MAGRPOConfig) -> Policy:
    """A preloaded policy as it is, or a transformers model with its tokenizer."""
    if isinstance(model, Policy):
        return model
    return HFPolicy(model, tokenizer, device, config.mixed_precision, config.gradient_checkpointing)


def weights_sha256(policy: Policy) -> str:
    """SHA-256 over the bytes of every parameter, in order; equal weights give equal digests."""
    digest = hashlib.sha256()
    for parameter in policy.parameters():
        values = parameter.detach().cpu().contiguous()
        digest.update(f"{values.dtype}{tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
