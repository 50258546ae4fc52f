"""What a training run tells its tracker and its log; it changes nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from marl_runner.counts import TreeCounts
from marl_runner.memory import memory_metrics
from marl_runner.metrics import (
    TrainWindow,
    generated_tokens,
    mean_return,
    mean_reward,
    update_metrics,
    zero_signal_name,
)
from marl_runner.phases import PhaseClock
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Team
from marl_runner.types import Event, Metrics, Node, Progress, Sample, Sampling, Task, Tracker, UpdateStats

log = logging.getLogger(__name__)

NO_SIGNAL_EVENTS = 3
"""Training events in a row with hardly any signal before a warning."""
ONE_TURN_TREES = 4
"""First trees without a second turn before a warning, in a run that has several."""


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


class Reporter:
    """Counts, averages and passes on.

    Args:
        tracker: Told what happened.
        counters: Kept up to date.
        clock: Where the seconds go; emptied by each training event.
        team: The agents.
        config: The run's settings.
    """

    def __init__(
        self, tracker: Tracker, counters: Counters, clock: PhaseClock, team: Team, config: MAGRPOConfig
    ) -> None:
        self._tracker = tracker
        self._counters = counters
        self._clock = clock
        self._num_agents = len(team.agents)
        self._devices = {str(agent.policy.device) for agent in team.agents}
        self._config = config
        self._window = TrainWindow()
        self._last_logged_step = 0
        self._events_without_signal = 0
        self._return_mean: float | None = None
        self._one_turn_trees = 0
        self._goes_on = config.num_turns == 1
        self._started = time.monotonic()

    def announce(self, sampling: Sampling, most_work: TreeCounts) -> None:
        """Says once what is in force: how tokens are drawn, and the most that one task can cost."""
        log.info(
            "sampling in force: temperature %g, top_p %g, top_k %s, max_new_tokens %d, whatever the checkpoint says",
            sampling.temperature,
            sampling.top_p,
            sampling.top_k,
            sampling.max_new_tokens,
        )
        log.info(
            "a task takes at most %d nodes, %d joint actions, %d model calls and %d tokens",
            most_work.nodes,
            most_work.joint_actions,
            most_work.model_calls,
            most_work.tokens,
        )

    def tree(self, task: Task, root: Node, samples: Sequence[Sample]) -> None:
        """One task's scored tree, before any update from it."""
        tokens = generated_tokens(root)
        self._counters.generated_tokens += tokens
        self._window.add(root, samples, tokens)
        self._tracker.rollout(task, root, samples)
        self._one_turn_trees += 1
        self._goes_on = self._goes_on or bool(root.children_J)
        if self._one_turn_trees == ONE_TURN_TREES:
            self._warn_one_turn()
        reward = mean_reward(root)
        if reward is not None:
            self._counters.task_rewards.append(reward)
            self._return_mean = mean_return(root)

    def abstained(self, sample: Sample, task: Task) -> None:
        """A group without a single reward; said at the first."""
        self._counters.abstained_groups += 1
        if self._counters.abstained_groups == 1:
            log.warning(
                "the reward abstained (None) for a whole group: task %s, turn %d trains nothing",
                task.uid,
                sample.turn + 1,
            )

    def update(self, stats_N: Sequence[UpdateStats]) -> None:
        """One optimiser step, of the agents that share its weights."""
        self._counters.updates += 1
        self._window.trained_tokens += sum(stats.tokens for stats in stats_N)
        self._log("update", update_metrics(stats_N))

    def evaluation(self, metrics: Metrics) -> None:
        """One evaluation."""
        self._counters.evaluation = metrics
        self._log("eval", metrics)

    def task_done(self, num_tasks: int | None) -> None:
        """The end of one task: a training event where it is due, and the console's progress."""
        counters = self._counters
        if counters.env_step - self._last_logged_step >= self._config.logging_steps:
            self.train_event()
        self._tracker.progress(
            Progress(
                epoch=counters.epoch,
                num_epochs=self._config.num_train_epochs,
                tasks_done=counters.tasks,
                num_tasks=None if num_tasks is None else num_tasks * self._config.num_train_epochs,
                env_step=counters.env_step,
                generated_tokens=counters.generated_tokens,
                elapsed_s=time.monotonic() - self._started,
                reward_mean=counters.task_rewards[-1] if counters.task_rewards else None,
                return_mean=self._return_mean,
            )
        )

    def trained(self) -> None:
        """The end of training: what was not reported yet."""
        self.train_event()
        if 0 < self._one_turn_trees < ONE_TURN_TREES:
            self._warn_one_turn()

    def train_event(self) -> None:
        """Logs the means since the last training event, if anything happened since."""
        if self._counters.env_step == self._last_logged_step:
            return
        metrics = self._window.metrics(self._clock.take()) | memory_metrics(self._devices)
        self._window = TrainWindow()
        self._last_logged_step = self._counters.env_step
        self._log("train", metrics)
        self._warn_no_signal(metrics)

    def _log(self, kind: str, metrics: Metrics) -> None:
        self._tracker.log(Event(kind, self._counters.env_step, self._counters.epoch, metrics))

    def _warn_one_turn(self) -> None:
        if not self._goes_on:
            log.warning(
                "turn 2 was never reached in %d tasks: every first node's mean reward is above "
                "early_termination_threshold=%s; set trainer.early_termination_threshold=null, or shift the reward",
                self._one_turn_trees,
                self._config.early_termination_threshold,
            )

    def _warn_no_signal(self, metrics: Metrics) -> None:
        zero = fmean(metrics.get(zero_signal_name(agent), 1.0) for agent in range(self._num_agents))
        self._events_without_signal = self._events_without_signal + 1 if zero >= 0.95 else 0
        if self._events_without_signal == NO_SIGNAL_EVENTS:
            log.warning(
                "%.0f %% of the groups carry no signal: their rewards are all equal, so nothing is learned from them "
                "(env_step %d); check the reward, or raise trainer.temperature",
                100 * zero,
                self._counters.env_step,
            )
