"""The team: N agents, each with its policy, formatter, optimiser and random streams."""

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


@dataclass
class Agent:
    """One agent.

    Attributes:
        index: Its place in the team, from 0.
        policy: Samples and scores.
        formatter: From a task to the text it is sent.
        optimizer: AdamW over the policy's parameters.
        scheduler: Learning-rate schedule, stepped once per optimiser step.
        reference: Frozen copy for the penalty, or None.
        sample_rng: Stream of training completions, on the policy's device.
        eval_rng: Stream of evaluation completions, on the policy's device.
        update_rng: Stream that shuffles a drained buffer.
        micro_batch_size: Completions of one scoring pass.
    """

    index: int
    policy: Policy
    formatter: PromptFormatter
    optimizer: torch.optim.Optimizer
    scheduler: Any
    reference: Policy | None
    sample_rng: torch.Generator
    eval_rng: torch.Generator
    update_rng: random.Random
    micro_batch_size: int


class Team:
    """The agents, and how they run: one after the other, or concurrently.

    Args:
        agents: In order of their index.
        parallel: Run `map` with one thread per agent; their devices do the work.
    """

    def __init__(self, agents: Sequence[Agent], parallel: bool) -> None:
        self.agents = list(agents)
        self._pool = ThreadPoolExecutor(len(agents), thread_name_prefix="agent") if parallel else None

    def map(self, work: Callable[[Agent], Result], agents: Sequence[Agent] | None = None) -> list[Result]:
        """Applies `work` to the given agents (default all) and returns the results in their order.

        An exception of one agent is raised after the others have ended.
        """
        chosen = self.agents if agents is None else list(agents)
        if self._pool is None:
            return [work(agent) for agent in chosen]
        futures = [self._pool.submit(work, agent) for agent in chosen]
        for future in futures:
            future.exception()
        return [future.result() for future in futures]

    def save(self, folder: Path) -> None:
        """Writes each agent's model and tokenizer to `folder/agent_i`."""
        for agent in self.agents:
            agent.policy.save(folder / f"agent_{agent.index}")


def make_agent(
    index: int,
    policy: Policy,
    formatter: PromptFormatter,
    config: MAGRPOConfig,
    reference_device: torch.device | None,
    max_updates: int | None,
) -> Agent:
    """Gives a policy its optimiser, schedule, reference and streams.

    Args:
        index: Agent index, which names its random streams.
        policy: On its device already.
        formatter: The agent's formatter.
        config: The run's settings.
        reference_device: Where its reference is put; None for no reference.
        max_updates: Optimiser steps of a run of full trees, for schedules that end; None if unknown.
    """
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=config.agent_learning_rate, weight_decay=config.weight_decay)
    return Agent(
        index=index,
        policy=policy,
        formatter=formatter,
        optimizer=optimizer,
        scheduler=make_scheduler(optimizer, config, max_updates),
        reference=None if reference_device is None else policy.frozen_copy(reference_device),
        sample_rng=seeded(policy.device, derive_seed(config.seed, "sample", index)),
        eval_rng=seeded(policy.device, derive_seed(config.seed, "eval", index)),
        update_rng=random.Random(derive_seed(config.seed, "update", index)),
        micro_batch_size=config.micro_batch_size,
    )


def make_scheduler(optimizer: torch.optim.Optimizer, config: MAGRPOConfig, max_updates: int | None) -> Any:
    """The named schedule of transformers."""
    from transformers import get_scheduler

    name = config.lr_scheduler
    if name == "constant" and config.warmup_steps:
        name = "constant_with_warmup"
    return get_scheduler(name, optimizer, num_warmup_steps=config.warmup_steps, num_training_steps=max_updates)


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """A random stream on `device`."""
    return torch.Generator(device=device).manual_seed(seed)


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
    return HFPolicy(model, tokenizer, device, config.mixed_precision)


def weights_sha256(policy: Policy) -> str:
    """SHA-256 over the bytes of every parameter, in order; equal weights give equal digests."""
    digest = hashlib.sha256()
    for parameter in policy.parameters():
        values = parameter.detach().cpu().contiguous()
        digest.update(f"{values.dtype}{tuple(values.shape)}".encode())
        digest.update(values.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
