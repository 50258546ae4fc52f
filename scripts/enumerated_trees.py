"""The same expectation without a shortcut: every ordered outcome of every node, each a whole tree of RolloutEngine.

A policy of `tabular_team.py` is handed the outcome whose turn it is; the engine rolls it out, `credit_node` credits
every node, and the loss of each sample is weighed by the probability of its tree. 7**4 trees of one turn, or
2**4 * 2**8 trees of two turns of a team with two completions, is as far as this goes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import torch

from enumerated_outcomes import Case, descent, make_trainer
from marl_runner.credit import credit_node
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Completion, Node, Sample, Task
from tabular_team import NUM_AGENTS, Gradients, TabularTeam

Answers = tuple[Completion, ...]
"""What each agent samples at one node: K of the first agent, then K of the second."""


def trees(team: TabularTeam, case: Case, trainer: MAGRPOTrainer) -> Iterator[tuple[float, Node]]:
    """Every tree that can be sampled, with its probability."""
    num_later = case.num_nodes - 1
    at_a_node = list(itertools.product(team.policies[0].completions, repeat=NUM_AGENTS * case.K))
    tables = [[probabilities.tolist() for probabilities in team.probabilities(state)] for state in range(4)]
    for first in at_a_node:
        for later in itertools.product(at_a_node, repeat=num_later):
            root = rolled_out(team, case, trainer, (first, *later))
            yield math.prod(chance(team, node, tables) for node in root.walk()), root
            if not root.children_J:
                break  # what would have been sampled below a root without children is no part of the outcome


def rolled_out(team: TabularTeam, case: Case, trainer: MAGRPOTrainer, answers: tuple[Answers, ...]) -> Node:
    """The engine's tree when the agents answer so, node by node in breadth-first order."""
    for agent, policy in enumerate(team.policies):
        own = slice(agent * case.K, (agent + 1) * case.K)
        policy.script = iter([completion for at_node in answers for completion in at_node[own]])
    (root,) = trainer.engine.rollout([Task("game", {"prompt": "0"})], first=0, env_step=0)
    assert root is not None
    return root


def chance(team: TabularTeam, node: Node, tables: list[list[list[float]]]) -> float:
    """Probability of what was sampled at one node, given its prompt; `tables` is [state][agent][completion]."""
    completions = team.policies[0].completions
    by_agent = tables[int(node.prompts_N[0].text)]
    return math.prod(
        by_agent[agent][completions.index(completion)]
        for agent, sampled_K in enumerate(node.completions_N_K)
        for completion in sampled_K
    )


def brute_gradients(team: TabularTeam, case: Case, threshold: float | None = None) -> Gradients:
    """[turn][agent] expected step direction, divided by the nodes of a full tree."""
    trainer = make_trainer(team, case, threshold)
    weights: Counter[Sample] = Counter()
    for probability, root in trees(team, case, trainer):
        for node in root.walk():
            for sample in credit_node(node, trainer.rules):
                weights[sample] += probability * sample.weight / case.num_nodes
    total = [[torch.zeros_like(policy.weights) for policy in team.policies] for _ in range(case.num_turns)]
    for sample, scale in weights.items():  # equal samples have equal gradients: each is taken once
        total[sample.turn][sample.agent] += descent(trainer, sample, scale)
    return total
