"""How much a run will do at most, from its settings alone: full trees, no early termination."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from marl_runner.errors import ConfigError
from marl_runner.setting_rules import COMPAT
from marl_runner.settings import MAGRPOConfig

MOST_JOINT_ACTIONS = 1_000_000
"""Of one task; more is a slip of the keyboard, and would never end."""


@dataclass(frozen=True)
class TreeCounts:
    """Most work of one task.

    Attributes:
        nodes: Nodes of a full tree, sum over turns t of J**t.
        joint_actions: Scored joint actions, J per node; also the reward calls.
        completions: Sampled completions, N * K per node.
        tokens: Sampled tokens, `max_new_tokens` per completion.
        model_calls: Batched sampling calls, after chunking by `max_rollout_rows`.
    """

    nodes: int
    joint_actions: int
    completions: int
    tokens: int
    model_calls: int


def tree_counts(config: MAGRPOConfig, num_joint_actions: int) -> TreeCounts:
    """Counts of a full tree with `num_joint_actions` (J) children per node.

    Raises:
        ConfigError: A task would take more than MOST_JOINT_ACTIONS.
    """
    level_sizes: list[int] = []
    for turn in range(config.num_turns):
        level_sizes.append(num_joint_actions**turn)
        if sum(level_sizes) * num_joint_actions > MOST_JOINT_ACTIONS:
            raise ConfigError(
                f"a task would take over {MOST_JOINT_ACTIONS:,} joint actions: {num_joint_actions:,} at each node, "
                f"{config.num_turns} turns; lower trainer.num_turns or num_generations, or use joint_mode=aligned"
            )
    nodes = sum(level_sizes)
    chunk = max(1, config.max_rollout_rows // config.num_generations)
    completions = nodes * config.num_agents * config.num_generations
    return TreeCounts(
        nodes=nodes,
        joint_actions=nodes * num_joint_actions,
        completions=completions,
        tokens=completions * config.max_new_tokens,
        model_calls=sum(config.num_agents * -(-size // chunk) for size in level_sizes),
    )


def max_updates(config: MAGRPOConfig, num_joint_actions: int, num_tasks: int) -> int:
    """Optimiser steps of one agent over a whole run of full trees: full buffers, and the flush of each epoch."""
    nodes = tree_counts(config, num_joint_actions).nodes * num_tasks
    size = config.train_batch_size or config.rollout_buffer_size
    if config.compat != COMPAT:
        full, rest = divmod(nodes, config.rollout_buffer_size)
        return config.num_train_epochs * (full * -(-config.rollout_buffer_size // size) + -(-rest // size))
    turns = itertools.chain.from_iterable(tree_turns(num_joint_actions, config.num_turns) for _ in range(num_tasks))
    steps = 0
    while buffer := Counter(itertools.islice(turns, config.rollout_buffer_size)):
        steps += sum(-(-count // size) for count in buffer.values())
    return config.num_train_epochs * steps


def tree_turns(num_joint_actions: int, num_turns: int, turn: int = 0) -> Iterator[int]:
    """The turn of every node of a full tree, in env-step order."""
    yield turn
    if turn + 1 < num_turns:
        for _ in range(num_joint_actions):
            yield from tree_turns(num_joint_actions, num_turns, turn + 1)


def num_evaluations(config: MAGRPOConfig, num_tasks: int) -> int:
    """Evaluations of a whole run: at multiples of `eval_interval` in each epoch, and one after the last update."""
    if config.eval_interval == 0 or config.eval_num_samples == 0:
        return 0
    return config.num_train_epochs * -(-num_tasks // config.eval_interval) + 1
