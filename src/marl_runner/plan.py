"""`dry_run=true`: what a run would do at most, without loading a weight."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_runner.advice import advice
from marl_runner.agents.source import AgentSize
from marl_runner.build import build_processor, hooks, option
from marl_runner.config import algorithm_name, settings
from marl_runner.counts import TreeCounts, max_updates, num_evaluations, tree_counts
from marl_runner.policies.scoring import CHUNK_LOGITS
from marl_runner.rewards.call import RewardCaller
from marl_runner.settings import MAGRPOConfig
from marl_runner.tasks import tasks_of
from marl_runner.trainers.checks import check_fields, reward_range
from marl_runner.transitions.call import TransitionCaller
from marl_runner.types import JointMode, Splits

GIB = 2**30


def print_plan(cfg: DictConfig) -> None:
    """Prints team, work, memory and warnings of one composed run.

    Raises:
        ConfigError, DataError: What would stop the run before it trains.
    """
    config = settings(cfg)
    reward, transition = hooks(cfg)
    RewardCaller(reward, config.num_agents)
    if transition is not None:
        TransitionCaller(transition, config.num_agents)
    splits: Splits = option("dataset", cfg)()
    check_fields([*tasks_of(splits.train), *tasks_of(splits.eval, name="eval-")], reward)
    sizes: list[AgentSize] = option("agents", cfg).sizes()
    joint_mode: JointMode = config.joint_mode
    num_joint_actions = joint_mode.size(config.num_agents, config.num_generations)
    counts = tree_counts(config, num_joint_actions)
    console = Console(highlight=False)
    console.print(
        Text(
            f"{algorithm_name(cfg)}: {config.num_agents} agents, {config.num_turns} turns, "
            f"joint_mode {joint_mode.name}, K={config.num_generations}, J={num_joint_actions}; "
            f"{len(splits.train)} training tasks, {len(splits.eval)} to evaluate, {config.num_train_epochs} epochs"
        ),
        soft_wrap=True,
    )
    console.print(agents_table(sizes, config))
    console.print(work_table(config, counts, len(splits.train), len(splits.eval)))
    for warning in advice(config, reward_range(reward), build_processor(cfg)):
        console.print(Text(f"WARNING  {warning}"), soft_wrap=True)


def agents_table(sizes: list[AgentSize], config: MAGRPOConfig) -> Table:
    """One row per agent: parameters, and bytes of everything that training it holds at once."""
    table = Table("agent", "model", "parameters", "weights", "gradients + AdamW", "reference", "batch", title="Agents")
    total = 0
    for index, size in enumerate(sizes):
        parts = memory_bytes(size, config)
        total += sum(parts)
        name = Text(Path(size.name).name)  # as it is: a folder may be called [bold]
        table.add_row(str(index), name, f"{size.num_parameters:,}", *(gib(part) for part in parts))
    table.caption = f"memory estimate {gib(total)}, prompts not counted; 'batch' is the larger of sampling and update"
    return table


def memory_bytes(size: AgentSize, config: MAGRPOConfig) -> tuple[int, int, int, int]:
    """Estimated bytes of one agent: weights, gradients with AdamW's two moments, reference, largest batch.

    Under bf16 the weights are float32, and the copy that is sampled from counts with them.

    The batch is the larger of the sampling cache of `max_rollout_rows` completions, prompts left out, and of the
    update's float32 logits of one chunk with their gradient and softmax.
    """
    mixed = config.mixed_precision == "bf16"
    width = 4 if mixed else size.bytes_per_weight
    weights = size.num_parameters * width
    cached = config.max_rollout_rows * config.max_new_tokens * size.cache_values_per_token
    cache = cached * (2 if mixed else width)
    logits = 3 * 4 * max(CHUNK_LOGITS, size.vocabulary)
    sampling_copy = size.num_parameters * 2 if mixed else 0
    reference = weights if config.reference_kl_enabled else 0
    return weights + sampling_copy, 3 * weights, reference, max(cache, logits)


def gib(num_bytes: int) -> str:
    """Bytes as GiB."""
    return f"{num_bytes / GIB:.3f} GiB"


def work_table(config: MAGRPOConfig, counts: TreeCounts, num_tasks: int, num_eval_tasks: int) -> Table:
    """The most a task, an epoch and the whole run can cost; early termination only makes it less."""
    table = Table("at most", "per task", "per epoch", "whole run", title="Work of full trees")
    for name, value in vars(counts).items():
        row = [value, value * num_tasks, value * num_tasks * config.num_train_epochs]
        table.add_row(name.replace("_", " "), *(f"{number:,}" for number in row))
    calls = counts.joint_actions
    table.add_row(
        "reward calls", *(f"{n:,}" for n in (calls, calls * num_tasks, calls * num_tasks * config.num_train_epochs))
    )
    updates = max_updates(config, counts.joint_actions // counts.nodes, num_tasks)
    table.add_row("optimiser steps of an agent", "", f"{updates // config.num_train_epochs:,}", f"{updates:,}")
    evaluations = num_evaluations(config, num_tasks) if num_eval_tasks else 0
    evaluated = evaluations * min(config.eval_num_samples, num_eval_tasks) * config.num_turns
    table.add_row("evaluations", "", "", f"{evaluations:,}")
    table.add_row("evaluation reward calls", "", "", f"{evaluated:,}")
    return table
