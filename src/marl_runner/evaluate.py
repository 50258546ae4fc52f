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
from marl_runner.types import Metrics, Prompt, Reward, Task, Turn

EvalLogger = Callable[..., Sequence[Mapping[str, Any]]]
EvalAggregator = Callable[..., Mapping[str, float]]


class EvaluationPath:
    """One task's path while it is played; `place` names its random streams."""

    def __init__(self, task: Task, place: tuple[int, int], num_turns: int) -> None:
        self.task = task
        self.place = place
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
            EvaluationPath(task, (self._num_evaluations, index), self.config.num_turns)
            for index, task in enumerate(tasks)
        ]
        self._num_evaluations += 1
        size = min(self.config.eval_batch_size, self.config.max_rollout_rows)
        for start in range(0, len(paths), size):
            self._play(paths[start : start + size])
        if not paths:
            return {}
        metrics = evaluation_metrics([path.rewards_H for path in paths], self.config.applied_discount)
        return {**self._custom(paths), **metrics}

    def _play(self, paths: Sequence[EvaluationPath]) -> None:
        """Plays some tasks together, turn by turn; a path whose next prompt is dropped ends there."""
        for turn in range(self.config.num_turns):
            for path in paths:
                path.prompts_N = self._prompts(path, turn)
            alive = [path for path in paths if path.prompts_N is not None]
            if alive:
                self._turn(alive, turn)

    def _prompts(self, path: EvaluationPath, turn: int) -> tuple[Prompt, ...] | None:
        if turn == 0:
            return self.engine.first_prompts(path.task)
        if path.prompts_N is None:
            return None
        return self.engine.next_prompts(path.task, path.history)

    def _turn(self, paths: Sequence[EvaluationPath], turn: int) -> None:
        prompts_P_N = [path.prompts_N for path in paths if path.prompts_N is not None]
        completions_N_P_K = sample_team(
            self.engine.team, prompts_P_N, [(*path.place, turn) for path in paths], 1, self.engine.sampling, "eval"
        )
        for p, (path, prompts_N) in enumerate(zip(paths, prompts_P_N, strict=True)):
            actions_N = tuple(completions_P_K[p][0].text for completions_P_K in completions_N_P_K)
            path.history += (Turn(tuple(prompt.text for prompt in prompts_N), actions_N),)
            where = f"evaluation task {path.task.uid}, turn {turn + 1}"
            path.rewards_H[turn] = self.engine.reward(actions_N, prompts_N[0].text, path.task, where)

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
