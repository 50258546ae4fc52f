"""From checked arguments to a loaded team."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.advice import mode_name
from marl_runner.compat import float32_advantages
from marl_runner.counts import max_updates
from marl_runner.credit import CreditRules, exact_advantages
from marl_runner.errors import ConfigError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.loading import fit_embeddings, load_model
from marl_runner.policies.base import Policy
from marl_runner.policies.hf import HFPolicy
from marl_runner.run_folder import refuse_used
from marl_runner.setting_rules import COMPAT
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
from marl_runner.tasks import RepeatedTasks
from marl_runner.team import Learner, Team, make_agent, make_learners, make_policy, resolve_devices
from marl_runner.tracking.options import default_trackers
from marl_runner.trainers.sources import Source
from marl_runner.types import JointMode, Tracker

log = logging.getLogger(__name__)

Copies = dict[tuple[frozenset[torch.nn.Parameter], torch.device], Policy]
"""Weights and device → the frozen copy of the weights that is there."""


def load_team(
    sources: Sequence[Source],
    formatters: Sequence[PromptFormatter],
    loading: Mapping[str, Any],
    config: MAGRPOConfig,
    num_updates: int | None,
) -> Team:
    """Loads every agent's model onto its device, with optimiser, reference and streams.

    Args:
        sources: What each agent is made of.
        formatters: One per agent.
        loading: The model configuration.
        config: The run's settings.
        num_updates: Optimiser steps of the whole run, for schedules; None if unknown.

    Raises:
        ConfigError: A model or device is not there, or a tokenizer is larger than its model.
    """
    devices = resolve_devices(config.agent_devices, len(sources), "agent_devices")
    if any(device.type == "cpu" for device in devices):
        warn_slow_bf16(config)
    check_shared_devices(sources, devices)
    models = [load_source(source, loading, device) for source, device in zip(sources, devices, strict=True)]
    for index, (model, source) in enumerate(zip(models, sources, strict=True)):
        # Of all agents first: one that shares the model may grow its table further.
        if source.tokenizer is not None:
            seed = derive_seed(config.seed, "embeddings", index)
            fit_embeddings(model, source.tokenizer, loading.get("special_tokens"), seed, source.name)
    places = reference_devices(config, devices)
    copies: Copies = {}
    agents = []
    for index, (model, source) in enumerate(zip(models, sources, strict=True)):
        policy = make_policy(model, source.tokenizer, devices[index], config)
        reference = reference_of(policy, places[index], copies)
        agents.append(make_agent(index, policy, formatters[index], config, reference))
    learners = make_learners(agents, config, num_updates)
    return Team(agents, learners, *concurrency(learners, config))


def warn_slow_bf16(config: MAGRPOConfig) -> None:
    """Says that this processor multiplies bfloat16 matrices slower than float32, if it is asked to."""
    capability = torch.backends.cpu.get_cpu_capability()
    if config.mixed_precision == "bf16" and capability in ("NO AVX", "AVX2"):
        log.warning(
            "mixed_precision=bf16: this processor (%s) has no bfloat16 products, which will be many times slower than "
            "float32; set trainer.mixed_precision=none",
            capability,
        )


def concurrency(learners: Sequence[Learner], config: MAGRPOConfig) -> tuple[int, bool]:
    """How many learners run at the same time, and whether they share one CPU's cores.

    Policies of the user's own run one
    after the other unless `parallel_training=mp` asks for more: they may not be made for threads.
    """
    if config.parallel_training == "mp":
        return len(learners), False
    agents = [agent for learner in learners for agent in learner.agents]
    ours_on_cpu = all(isinstance(agent.policy, HFPolicy) and agent.policy.device.type == "cpu" for agent in agents)
    return (min(torch.get_num_threads(), len(learners)), True) if ours_on_cpu else (1, False)


def load_source(source: Source, loading: Mapping[str, Any], device: torch.device) -> Any:
    """The model of an identifier, loaded onto its device; a preloaded one as it is."""
    if not isinstance(source.model, str):
        return source.model
    dtype = loading.get("dtype") or loading.get("torch_dtype")
    return load_model(source.model, dtype, loading.get("attn_implementation")).to(device)


def check_shared_devices(sources: Sequence[Source], devices: Sequence[torch.device]) -> None:
    """Raises ConfigError if a model object that several agents share is asked to be on two devices."""
    places: dict[int, tuple[int, torch.device]] = {}
    for index, (source, device) in enumerate(zip(sources, devices, strict=True)):
        if isinstance(source.model, str):
            continue
        first, place = places.setdefault(id(source.model), (index, device))
        if place != device:
            raise ConfigError(
                f"agents {first} and {index} are one model object, which cannot be on {place} and on {device}; "
                "give them the same agent_devices entry, or each a model of its own"
            )


def reference_of(policy: Policy, device: torch.device | None, copies: Copies) -> Policy | None:
    """An agent's frozen reference, from `copies` where an agent of the same weights has one on that device already."""
    if device is None:
        return None
    key = (frozenset(policy.parameters()), device)
    if key not in copies:
        copies[key] = policy.frozen_copy(device)
    return copies[key]


def reference_devices(config: MAGRPOConfig, devices: Sequence[torch.device]) -> list[torch.device | None]:
    """Where each agent's reference goes: beside the agent by default; None without a reference."""
    if not config.reference_kl_enabled:
        return [None] * len(devices)
    if config.reference_devices is None:
        return list(devices)
    return list(resolve_devices(config.reference_devices, len(devices), "reference_devices"))


def count_updates(config: MAGRPOConfig, joint_mode: JointMode, tasks: RepeatedTasks | None) -> int | None:
    """Optimiser steps of one agent over a run of full trees; None if the dataset's length is unknown.

    Raises:
        ConfigError: The schedule ends, and so needs to know when.
    """
    if tasks is None or tasks.length is None:
        if config.lr_scheduler != "constant":
            raise ConfigError(f"lr_scheduler={config.lr_scheduler} needs a train_dataset of known length; use constant")
        return None
    num_joint_actions = joint_mode.size(config.num_agents, config.num_generations)
    return max_updates(config, num_joint_actions, tasks.length)


def credit_rules(config: MAGRPOConfig, joint_mode: JointMode) -> CreditRules:
    """From returns to advantages, as the settings say."""
    return CreditRules(
        joint_mode=joint_mode,
        advantage_mode=resolve_mode(config.advantage_mode, ADVANTAGE_MODES),
        normalize=config.advantage_normalization,
        reference_kl_coef=config.reference_kl_coef,
        objective_weighting=config.node_weighting == "objective",
        estimate=float32_advantages if config.compat == COMPAT else exact_advantages,
    )


def new_run_folder(parent: str | None, algorithm: str) -> Path:
    """A folder named after algorithm and time, to the microsecond, in `parent`; None is "outputs"."""
    return Path("outputs" if parent is None else parent) / f"{algorithm}-{datetime.now():%Y%m%d-%H%M%S-%f}"


def default_tracker(folder: Path, config: MAGRPOConfig, wandb_config: Mapping[str, Any] | None) -> Tracker:
    """Files in `folder`, and a W&B run if one is configured.

    Raises:
        RunFolderError: The folder holds an earlier run.
    """
    refuse_used(folder)
    named = {"joint_mode": mode_name(config.joint_mode), "advantage_mode": mode_name(config.advantage_mode)}
    return default_trackers(folder, wandb_config, {**vars(config), **named})


def resolve_mode(mode: Any, table: Mapping[str, Callable[[], Any]]) -> Any:
    """A mode given by name, from its table; a mode object as it is."""
    return table[mode]() if isinstance(mode, str) else mode
