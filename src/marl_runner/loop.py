"""The training loop: multi-agent REINFORCE as an algorithm box.

for each task (or some at once, where no update falls between them):
    root ← rollout tree of the task
    returns, backward over the tree
    one sample per agent per node → rollout buffers, in env-step order
    an agent whose buffer is full updates at once and empties it (with it, those that share its weights)
at the end of each epoch every non-empty buffer is flushed
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from marl_runner.buffer import RolloutBuffer
from marl_runner.credit import CreditRules, credit_node
from marl_runner.evaluate import Evaluator
from marl_runner.reporter import Counters, Reporter
from marl_runner.rollout import RolloutEngine
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
from marl_runner.team import Learner, Team
from marl_runner.types import Node, Sample, Task, Tracker, UpdateStats
from marl_runner.update import update_learner


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
        self.config = config
        self.counters = Counters()
        self.clock = engine.clock
        self.report = Reporter(tracker, self.counters, self.clock, team, config)
        self.buffers = [RolloutBuffer(config.rollout_buffer_size) for _ in team.agents]

    def run(self, tasks: Iterable[Task], num_tasks: int | None) -> Counters:
        """Trains for `num_train_epochs` passes over `tasks`, then evaluates once more.

        Args:
            tasks: Iterated anew each epoch.
            num_tasks: Their number, or None if unknown.
        """
        self.report.announce(self.engine.sampling, self.engine.most_work)
        for epoch in range(self.config.num_train_epochs):
            self.counters.epoch = epoch
            ordered = enumerate(self._ordered(tasks, epoch))
            for index, task in ordered:
                if self.evaluator.due(index):
                    self._evaluate()
                together = [task, *(other for _, other in itertools.islice(ordered, self._num_more_tasks(index)))]
                self._step(together, num_tasks)
            self._update(lambda buffer: len(buffer) > 0)
        self.report.trained()
        if self.evaluator.enabled:
            self._evaluate()
        return self.counters

    def _num_more_tasks(self, index: int) -> int:
        """How many tasks can be sampled together with the one at this index of the epoch.

        No update and no evaluation may fall between them, and they are at most what fills a batch.
        """
        nodes = self.engine.most_work.nodes
        before_update: int = min((buffer.size - len(buffer) - 1) // nodes for buffer in self.buffers)
        rows: int = self.engine.widest_level * self.config.num_generations
        return max(0, min(before_update, self.config.max_rollout_rows // rows - 1, self.evaluator.num_before(index)))

    def _step(self, tasks: Sequence[Task], num_tasks: int | None) -> None:
        """Some tasks: their trees, samples, and the updates that fall due."""
        with self.clock.timed("rollout"):
            roots = self.engine.rollout(tasks, self.counters.tasks, self.counters.env_step)
        for task, root in zip(tasks, roots, strict=True):
            self.counters.tasks += 1
            if root is None:
                self.counters.dropped_tasks += 1
            else:
                self._learn(task, root)
            self.report.task_done(num_tasks)

    def _learn(self, task: Task, root: Node) -> None:
        """From one scored tree to samples, and to the updates that fall due."""
        samples_by_node = [credit_node(node, self.rules) for node in root.walk()]
        samples = [sample for samples_N in samples_by_node for sample in samples_N]
        self.report.tree(task, root, samples)
        for node, samples_N in zip(root.walk(), samples_by_node, strict=True):
            self.counters.env_step = node.env_step
            self._collect(samples_N, task)

    def _collect(self, samples_N: Sequence[Sample], task: Task) -> None:
        """Puts one node's samples into the buffers, and updates where one is full."""
        for sample in samples_N:
            if sample.trains:
                self.buffers[sample.agent].add(sample)
            else:
                self.report.abstained(sample, task)
        self._update(lambda buffer: buffer.ready)

    def _update(self, due: Callable[[RolloutBuffer], bool]) -> None:
        """Where a buffer is due, empties those of all its learner's agents into optimiser steps."""
        learners = [learner for learner in self.team.learners if any(map(due, self._buffers_of(learner)))]
        if not learners:
            return
        with self.clock.timed("update"):
            steps_by_learner = self.team.map_learners(self._drained_update, learners)
        for stats_N in itertools.chain.from_iterable(steps_by_learner):
            self.report.update(stats_N)

    def _drained_update(self, learner: Learner) -> list[tuple[UpdateStats, ...]]:
        return update_learner(learner, [buffer.drain() for buffer in self._buffers_of(learner)], self.config)

    def _buffers_of(self, learner: Learner) -> list[RolloutBuffer]:
        return [self.buffers[agent.index] for agent in learner.agents]

    def _evaluate(self) -> None:
        """Evaluates; the training streams are left as they were."""
        with self.clock.timed("evaluation"):
            metrics = self.evaluator(self.config.eval_num_samples)
        self.report.evaluation(metrics)

    def _ordered(self, tasks: Iterable[Task], epoch: int) -> Iterator[Task]:
        if not self.config.shuffle:
            return iter(tasks)
        order = list(tasks)
        random.Random(derive_seed(self.config.seed, "shuffle", epoch)).shuffle(order)
        return iter(order)
