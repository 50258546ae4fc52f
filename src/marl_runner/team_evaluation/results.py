"""What an evaluation found: every path of every task, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass

from marl_runner.team_evaluation.passing import PassRule
from marl_runner.types import Reward, Turn


@dataclass(frozen=True)
class PlayedTurn:
    """One turn of a path.

    Attributes:
        texts: What each agent was sent, and what each answered.
        reward: Its reward; the value is None where it abstained.
    """

    texts: Turn
    reward: Reward


@dataclass(frozen=True)
class TaskResult:
    """One task.

    Attributes:
        uid: The task's.
        paths_S: The turns of each of its S samples; fewer than the horizon where a prompt was dropped as overlong.
    """

    uid: str
    paths_S: tuple[tuple[PlayedTurn, ...], ...]


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks.

    Attributes:
        mean: Of the tasks' own means, each task with the same weight.
        interval: Its 95 % bootstrap interval (low, high); None with one task.
        num_tasks: Tasks that have a value; the others abstained, or a prompt was dropped.
    """

    mean: float
    interval: tuple[float, float] | None
    num_tasks: int


@dataclass(frozen=True)
class TeamEvaluation:
    """A whole evaluation.

    Attributes:
        tasks: In the order of the split.
        metrics: Metric name → estimate.
        rule: Which paths passed; None where the reward has no part that says so.
    """

    tasks: tuple[TaskResult, ...]
    metrics: dict[str, Estimate]
    rule: PassRule | None
