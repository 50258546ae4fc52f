"""From checked arguments to a loaded team."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from marl_runner.counts import max_updates, tree_counts
from marl_runner.errors import ConfigError
from marl_runner.formatters.call import PromptFormatter
from marl_runner.loading import fit_embeddings, load_model
from marl_runner.run_folder import refuse_used
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
from marl_runner.team import Team, make_agent, make_policy, resolve_devices
from marl_runner.tracking.options import default_trackers
from marl_runner.trainers.sources import Source
from marl_runner.trainers.tasks import RepeatedTasks
from marl_runner.types import JointMode, Tracker


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
    references = reference_devices(config, devices)
    agents = []
    for index, source in enumerate(sources):
        model = source.model
        if isinstance(model, str):
            dtype = loading.get("dtype") or loading.get("torch_dtype")
            model = load_model(model, dtype, loading.get("attn_implementation"))
        if source.tokenizer is not None:
            seed = derive_seed(config.seed, "embeddings", index)
            fit_embeddings(model, source.tokenizer, loading.get("special_tokens"), seed, source.name)
        policy = make_policy(model, source.tokenizer, devices[index], config)
        agents.append(make_agent(index, policy, formatters[index], config, references[index], num_updates))
    return Team(agents, parallel=config.parallel_training == "mp")


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
    return max_updates(config, tree_counts(config, num_joint_actions).nodes, tasks.length)


def default_tracker(algorithm: str, output_dir: str | Path | None, wandb_config: Mapping[str, Any] | None) -> Tracker:
    """Files in `output_dir`, by default `outputs/<algorithm>-<time>`, and a W&B run if one is configured.

    Raises:
        RunFolderError: The folder holds an earlier run.
    """
    folder = Path("outputs") / f"{algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
    chosen = folder if output_dir is None else Path(output_dir)
    refuse_used(chosen)
    return default_trackers(chosen, wandb_config)


def resolve_mode(mode: Any, table: Mapping[str, Callable[[], Any]]) -> Any:
    """A mode given by name, from its table; a mode object as it is."""
    return table[mode]() if isinstance(mode, str) else mode
