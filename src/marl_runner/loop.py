"""The training loop: multi-agent REINFORCE as an algorithm box.

for each task:
    root ← rollout tree of the task
    returns, backward over the tree
    one sample per agent per node → rollout buffers, in env-step order
    an agent whose buffer is full updates at once and empties it
at the end of each epoch every non-empty buffer is flushed
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from marl_runner.buffer import RolloutBuffer
from marl_runner.credit import CreditRules, credit_node
from marl_runner.evaluate import Evaluator
from marl_runner.metrics import (
    TrainWindow,
    generated_tokens,
    mean_return,
    mean_reward,
    update_metrics,
    zero_signal_name,
)
from marl_runner.rollout import RolloutEngine
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
from marl_runner.team import Agent, Team
from marl_runner.types import Event, Metrics, Progress, Sample, Task, Tracker
from marl_runner.update import update_agent

log = logging.getLogger(__name__)

NO_SIGNAL_EVENTS = 3
"""Training events in a row with hardly any signal before a warning."""


@dataclass
class Counters:
    """What a run has done so far."""

    env_step: int = 0
    epoch: int = 0
    tasks: int = 0
    dropped_tasks: int = 0
    updates: int = 0
    generated_tokens: int = 0
    abstained_groups: int = 0
    task_rewards: list[float] = field(default_factory=list)
    evaluation: Metrics = field(default_factory=dict)


class TrainingLoop:
    """The parts of one run, and the loop over them.

    Args:
        team: The agents.
        engine: Samples and scores trees.
        evaluator: Evaluates the team.
        rules: From returns to advantages.
        tracker: Told what happened.
        config: The run's settings.
    """

    def __init__(
        self,
        team: Team,
        engine: RolloutEngine,
        evaluator: Evaluator,
        rules: CreditRules,
        tracker: Tracker,
        config: MAGRPOConfig,
    ) -> None:
        self.team = team
        self.engine = engine
        self.evaluator = evaluator
        self.rules = rules
        self.tracker = tracker
        self.config = config
        self.counters = Counters()
        self.buffers = [RolloutBuffer(config.rollout_buffer_size) for _ in team.agents]
        self._window = TrainWindow()
        self._last_logged_step = 0
        self._events_without_signal = 0
        self._return_mean: float | None = None
        self._started = time.monotonic()

    def run(self, tasks: Iterable[Task], num_tasks: int | None) -> Counters:
        """Trains for `num_train_epochs` passes over `tasks`, then evaluates once more.

        Args:
            tasks: Iterated anew each epoch.
            num_tasks: Their number, or None if unknown.
        """
        for epoch in range(self.config.num_train_epochs):
            self.counters.epoch = epoch
            for index, task in enumerate(self._ordered(tasks, epoch)):
                if self.evaluator.due(index):
                    self.evaluate()
                self._step(task)
                self._report(num_tasks)
            self._update([agent for agent in self.team.agents if len(self.buffers[agent.index])])
        self._log_train_event()
        if self.evaluator.enabled:
            self.evaluate()
        return self.counters

    def _step(self, task: Task) -> None:
        """One task: tree, samples, and the updates that fall due."""
        started = time.monotonic()
        root = self.engine.rollout(task, self.counters.env_step)
        rollout_s = time.monotonic() - started
        self.counters.tasks += 1
        if root is None:
            self.counters.dropped_tasks += 1
            return
        samples_by_node = [credit_node(node, self.rules) for node in root.walk()]
        samples = [sample for samples_N in samples_by_node for sample in samples_N]
        tokens = generated_tokens(root)
        self.counters.generated_tokens += tokens
        self._window.add(root, samples, tokens, rollout_s)
        self.tracker.rollout(task, root, samples)
        for node, samples_N in zip(root.walk(), samples_by_node, strict=True):
            self.counters.env_step = node.env_step
            self._collect(samples_N, task)
        reward = mean_reward(root)
        if reward is not None:
            self.counters.task_rewards.append(reward)
            self._return_mean = mean_return(root)
        if self.counters.env_step - self._last_logged_step >= self.config.logging_steps:
            self._log_train_event()

    def _collect(self, samples_N: Sequence[Sample], task: Task) -> None:
        """Puts one node's samples into the buffers, and updates the agents whose buffer is full."""
        for sample in samples_N:
            if sample.trains:
                self.buffers[sample.agent].add(sample)
            else:
                self._warn_abstained(sample, task)
        self._update([agent for agent in self.team.agents if self.buffers[agent.index].ready])

    def _update(self, agents: Sequence[Agent]) -> None:
        """Empties the buffers of these agents into optimiser steps, concurrently where the team is."""
        stats_by_agent = self.team.map(
            lambda agent: update_agent(agent, self.buffers[agent.index].drain(), self.config), agents
        )
        for stats in (stats for agent_stats in stats_by_agent for stats in agent_stats):
            self.counters.updates += 1
            self._log("update", update_metrics(stats))

    def evaluate(self) -> Metrics:
        """Evaluates and logs; the training streams are left as they were."""
        metrics = self.evaluator(self.config.eval_num_samples)
        self.counters.evaluation = metrics
        self._log("eval", metrics)
        return metrics

    def _ordered(self, tasks: Iterable[Task], epoch: int) -> Iterator[Task]:
        if not self.config.shuffle:
            return iter(tasks)
        order = list(tasks)
        random.Random(derive_seed(self.config.seed, "shuffle", epoch)).shuffle(order)
        return iter(order)

    def _log(self, kind: str, metrics: Metrics) -> None:
        self.tracker.log(Event(kind, self.counters.env_step, self.counters.epoch, metrics))

    def _log_train_event(self) -> None:
        """Logs the means since the last training event, if anything happened since."""
        if self.counters.env_step == self._last_logged_step:
            return
        metrics = self._window.close()
        self._last_logged_step = self.counters.env_step
        self._log("train", metrics)
        self._warn_no_signal(metrics)

    def _warn_no_signal(self, metrics: Metrics) -> None:
        zero = fmean(metrics.get(zero_signal_name(agent.index), 1.0) for agent in self.team.agents)
        self._events_without_signal = self._events_without_signal + 1 if zero >= 0.95 else 0
        if self._events_without_signal == NO_SIGNAL_EVENTS:
            log.warning(
                "%.0f %% of the groups carry no signal since env_step %d: their rewards are all equal, so nothing is "
                "learned from them; check the reward, or raise trainer.temperature",
                100 * zero,
                self.counters.env_step,
            )

    def _warn_abstained(self, sample: Sample, task: Task) -> None:
        self.counters.abstained_groups += 1
        if self.counters.abstained_groups == 1:
            log.warning(
                "the reward abstained (None) for a whole group: task %s, turn %d trains nothing",
                task.uid,
                sample.turn + 1,
            )

    def _report(self, num_tasks: int | None) -> None:
        counters = self.counters
        self.tracker.progress(
            Progress(
                epoch=counters.epoch,
                num_epochs=self.config.num_train_epochs,
                tasks_done=counters.tasks,
                num_tasks=None if num_tasks is None else num_tasks * self.config.num_train_epochs,
                env_step=counters.env_step,
                generated_tokens=counters.generated_tokens,
                elapsed_s=time.monotonic() - self._started,
                reward_mean=counters.task_rewards[-1] if counters.task_rewards else None,
                return_mean=self._return_mean,
            )
        )
