"""From played paths to named estimates; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import mean

from marl_runner.metrics import evaluation_metrics, pass_name
from marl_runner.team_evaluation.interval import bootstrap_interval
from marl_runner.team_evaluation.passing import PassRule, pass_at_k
from marl_runner.team_evaluation.results import Estimate, PlayedTurn, TaskResult
from marl_runner.types import Metrics, Reward


def estimates(
    tasks: Sequence[TaskResult],
    num_turns: int,
    discount: float,
    rule: PassRule | None,
    ks: Sequence[int],
    resamples: int,
) -> dict[str, Estimate]:
    """The mean of each metric over the tasks that have it, with its interval.

    Args:
        tasks: At least one.
        num_turns: H.
        discount: Weight of the next turn in `expected_return`.
        rule: Which paths pass; None leaves pass@k out.
        ks: Each k of pass@k.
        resamples: Of the bootstrap.
    """
    values: dict[str, list[float]] = defaultdict(list)
    for task in tasks:
        passed = {} if rule is None else pass_metrics(task, num_turns, rule, ks)
        for name, value in {**reward_metrics(task, num_turns, discount), **passed}.items():
            values[name].append(value)
    return {name: Estimate(mean(of), bootstrap_interval(of, resamples), len(of)) for name, of in values.items()}


def reward_metrics(task: TaskResult, num_turns: int, discount: float) -> Metrics:
    """One task's means over its samples, computed as training's own evaluation computes them over tasks."""
    unplayed = Reward(None)
    rewards_S_H = [
        [path[turn].reward if turn < len(path) else unplayed for turn in range(num_turns)] for path in task.paths_S
    ]
    return evaluation_metrics(rewards_S_H, discount)


def pass_metrics(task: TaskResult, num_turns: int, rule: PassRule, ks: Sequence[int]) -> Metrics:
    """One task's pass@k, at each turn and at the last turn that each path played."""
    metrics: Metrics = {}
    for turn in (*range(num_turns), None):
        num_passed = sum(passed(path, rule, turn) for path in task.paths_S)
        for k in ks:
            metrics[f"eval/{pass_name(k, turn)}"] = pass_at_k(len(task.paths_S), num_passed, k)
    return metrics


def passed(path: Sequence[PlayedTurn], rule: PassRule, turn: int | None = None) -> bool:
    """Whether a path passes at a turn, or at its last where none is given; never at one that it did not play."""
    if not path or (turn is not None and turn >= len(path)):
        return False
    return rule.holds(path[-1 if turn is None else turn].reward)
