"""Evaluation: one completion per agent per turn, along one path per task, from its own random streams."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from numbers import Real
from typing import Any

from marl_runner.errors import RolloutError
from marl_runner.hooks import hook_name
from marl_runner.metrics import evaluation_metrics
from marl_runner.rollout import RolloutEngine
from marl_runner.sampling import sample_team
from marl_runner.settings import MAGRPOConfig
from marl_runner.tasks import RepeatedTasks
from marl_runner.types import Metrics, Prompt, Reward, Sampling, Task, Turn

EvalLogger = Callable[..., Sequence[Mapping[str, Any]]]
EvalAggregator = Callable[..., Mapping[str, float]]


class EvaluationPath:
    """One path along a task while it is played.

    Args:
        task: The dataset row.
        place: The numbers that name its random streams, before the turn.
        where: Its name in messages.
        num_turns: H, most turns of it.
    """

    def __init__(self, task: Task, place: tuple[int, ...], where: str, num_turns: int) -> None:
        self.task = task
        self.place = place
        self.where = where
        self.history: tuple[Turn, ...] = ()
        self.rewards_H = [Reward(None)] * num_turns
        self.prompts_N: tuple[Prompt, ...] | None = None


class Evaluator:
    """Plays the first tasks of the evaluation set.

    Args:
        engine: Formats prompts, holds team, reward and transition; its training streams are not used.
        tasks: The evaluation tasks.
        eval_logger: `eval_logger(agent_completions_turns, batch_items, prompts)` → one metrics dict per task;
            `agent_completions_turns[agent][task][turn]` is a text.
        eval_aggregator: `eval_aggregator(metrics, num_turns)` → metrics, logged under `eval/`.
        config: The run's settings.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        tasks: RepeatedTasks,
        eval_logger: EvalLogger | None,
        eval_aggregator: EvalAggregator | None,
        config: MAGRPOConfig,
    ) -> None:
        self.engine = engine
        self.tasks = tasks
        self.config = config
        self._num_evaluations = 0
        self._callbacks = None if eval_logger is None or eval_aggregator is None else (eval_logger, eval_aggregator)

    def due(self, index: int) -> bool:
        """True before the task with this index of an epoch."""
        return self.enabled and index % self.config.eval_interval == 0

    def num_before(self, index: int) -> int:
        """How many tasks follow the one with this index before the next evaluation is due."""
        interval = self.config.eval_interval
        return interval - index % interval - 1 if self.enabled else sys.maxsize

    @property
    def enabled(self) -> bool:
        """False when there is nothing to evaluate, or evaluation is switched off."""
        return bool(self.config.eval_interval and self.config.eval_num_samples and self.tasks.length != 0)

    def __call__(self, num_samples: int) -> Metrics:
        """Metrics named `eval/…` over the first `num_samples` tasks; {} without any."""
        tasks = list(islice(self.tasks, num_samples))
        paths = [
            EvaluationPath(task, (self._num_evaluations, i), f"evaluation task {task.uid}", self.config.num_turns)
            for i, task in enumerate(tasks)
        ]
        self._num_evaluations += 1
        size = min(self.config.eval_batch_size, self.config.max_rollout_rows)
        for start in range(0, len(paths), size):
            play(self.engine, paths[start : start + size], self.engine.sampling)
        if not paths:
            return {}
        metrics = evaluation_metrics([path.rewards_H for path in paths], self.config.applied_discount)
        return {**self._custom(paths), **metrics}

    def _custom(self, paths: Sequence[EvaluationPath]) -> Metrics:
        if self._callbacks is None:
            return {}
        eval_logger, eval_aggregator = self._callbacks
        detailed = eval_logger(
            agent_completions_turns=[
                [[turn.actions_N[agent.index] for turn in path.history] for path in paths]
                for agent in self.engine.team.agents
            ],
            batch_items=[path.task.row() for path in paths],
            prompts=[path.task.prompt for path in paths],
        )
        aggregated = eval_aggregator(detailed, num_turns=self.config.num_turns)
        for name, value in aggregated.items():
            if not isinstance(value, Real):
                raise RolloutError(f"{hook_name(eval_aggregator)} returned {name}={value!r}, expected a number")
        return {f"eval/{name}": float(value) for name, value in aggregated.items()}


def play(engine: RolloutEngine, paths: Sequence[EvaluationPath], sampling: Sampling) -> None:
    """Plays some paths together, turn by turn; one whose next prompt is dropped ends there.

    Args:
        engine: Formats prompts, holds team, reward and transition.
        paths: Not yet played; they hold the rewards and texts afterwards.
        sampling: Every sampling field.
    """
    for turn in range(engine.config.num_turns):
        for path in paths:
            path.prompts_N = prompts_of(engine, path, turn)
        alive = [path for path in paths if path.prompts_N is not None]
        if alive:
            play_turn(engine, alive, turn, sampling)


def prompts_of(engine: RolloutEngine, path: EvaluationPath, turn: int) -> tuple[Prompt, ...] | None:
    """What each agent is sent at a turn of a path, or None where the path has ended."""
    if turn == 0:
        return engine.first_prompts(path.task)
    if path.prompts_N is None:
        return None
    return engine.next_prompts(path.task, path.history)


def play_turn(engine: RolloutEngine, paths: Sequence[EvaluationPath], turn: int, sampling: Sampling) -> None:
    """Samples and scores one turn of paths that all have prompts."""
    prompts_P_N = [path.prompts_N for path in paths if path.prompts_N is not None]
    completions_N_P_K = sample_team(
        engine.team, prompts_P_N, [(*path.place, turn) for path in paths], 1, sampling, "eval"
    )
    for p, (path, prompts_N) in enumerate(zip(paths, prompts_P_N, strict=True)):
        actions_N = tuple(completions_P_K[p][0].text for completions_P_K in completions_N_P_K)
        path.history += (Turn(tuple(prompt.text for prompt in prompts_N), actions_N),)
        path.rewards_H[turn] = engine.reward(actions_N, prompts_N[0].text, path.task, f"{path.where}, turn {turn + 1}")
