"""The rollout engine: grows the trees of some tasks level by level.

All open nodes of a turn, of all branches and tasks, are sampled in one batched call per agent; `env_step` is numbered
depth-first afterwards, whatever order generation ran in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

from marl_runner.counts import tree_counts
from marl_runner.errors import DataError, RolloutError
from marl_runner.phases import PhaseClock
from marl_runner.returns import with_returns
from marl_runner.rewards.call import RewardCaller
from marl_runner.sampling import fit_prompt, sample_team
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Team
from marl_runner.transitions.call import TransitionCaller
from marl_runner.types import Completion, Counted, JointAction, JointMode, Node, Prompt, Reward, Sampling, Task, Turn

Score = Callable[[], Reward]
"""Returns the reward of one joint action, as soon as it is known."""


@dataclass
class OpenNode:
    """A node while its tree grows.

    Attributes:
        task: Of its tree.
        place: Number of the task, then the joint action taken at each turn: the name of its random stream.
        prompts_N: What each agent is sent.
        history: The branch that led to it.
        completions_N_K: What each agent sampled.
        joint_actions_J: The scored joint actions.
        children: One per joint action, or none.
        ended: Why there are none.
    """

    task: Task
    place: tuple[int, ...]
    prompts_N: tuple[Prompt, ...]
    history: tuple[Turn, ...]
    completions_N_K: tuple[tuple[Completion, ...], ...] = ()
    joint_actions_J: tuple[JointAction, ...] = ()
    children: list[OpenNode] = field(default_factory=list)
    ended: str = ""

    @property
    def turn(self) -> int:
        """Depth in the tree, from 0."""
        return len(self.history)

    def played(self, index_N: Sequence[int]) -> tuple[Turn, ...]:
        """The branch after the joint action `index_N` of this node."""
        actions_N = tuple(self.completions_N_K[n][k].text for n, k in enumerate(index_N))
        return (*self.history, Turn(tuple(prompt.text for prompt in self.prompts_N), actions_N))


class RolloutEngine:
    """Samples and scores rollout trees.

    Args:
        team: The agents.
        reward: The shared reward.
        transition: Makes the next turn's prompts; None with one turn.
        joint_mode: Which joint actions are scored.
        config: The run's settings.
    """

    def __init__(
        self,
        team: Team,
        reward: RewardCaller,
        transition: TransitionCaller | None,
        joint_mode: JointMode,
        config: MAGRPOConfig,
    ) -> None:
        self.team = team
        self.reward = reward
        self.config = config
        self.clock = PhaseClock()
        self.sampling = Sampling(config.max_new_tokens, config.temperature, config.top_p, config.top_k)
        self.num_dropped_prompts = 0
        self.num_truncated_prompts = 0
        self._transition = transition
        num_joint_actions = joint_mode.size(len(team.agents), config.num_generations)
        self.most_work = tree_counts(config, num_joint_actions)
        self.widest_level = num_joint_actions ** (config.num_turns - 1)
        self._index_J = joint_mode.index(len(team.agents), config.num_generations)
        workers = config.reward_num_workers
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="reward") if workers > 1 else None

    def rollout(self, tasks: Sequence[Task], first: int, env_step: int) -> list[Node | None]:
        """The scored trees of some tasks with their returns; None where the first prompt was dropped as overlong.

        Args:
            tasks: Dataset rows, sampled together by the same policies.
            first: Number of the first task, counted over the whole run.
            env_step: Joint actions counted before these tasks.

        Raises:
            RewardError, TransitionError, RolloutError: A hook failed, or a prompt is too long.
        """
        roots = [self._root(task, number) for number, task in enumerate(tasks, start=first)]
        level = [root for root in roots if root is not None]
        while level:
            self._play(level)
            level = [child for node in level for child in self._expand(node) if not child.ended]
        trees: list[Node | None] = []
        for root in roots:
            if root is None:
                trees.append(None)
                continue
            tree, env_step = numbered(root, env_step)
            trees.append(with_returns(tree, self.config.applied_discount))
        return trees

    def hook_counts(self) -> dict[str, dict[str, int]]:
        """What the reward and the transition count themselves, under `reward` and `transition`."""
        hooks: dict[str, Any] = {"reward": self.reward.function}
        if self._transition is not None:
            hooks["transition"] = self._transition.function
        return {name: dict(hook.counts) for name, hook in hooks.items() if isinstance(hook, Counted)}

    def _root(self, task: Task, number: int) -> OpenNode | None:
        prompts_N = self.first_prompts(task)
        return None if prompts_N is None else OpenNode(task, (number,), prompts_N, history=())

    def first_prompts(self, task: Task) -> tuple[Prompt, ...] | None:
        """What each agent is sent at turn 1, or None if it is dropped."""
        return self._fitted(task, [None] * len(self.team.agents), turn=0)

    def next_prompts(self, task: Task, history: tuple[Turn, ...]) -> tuple[Prompt, ...] | None:
        """What each agent is sent after `history`, or None if it is dropped."""
        if self._transition is None:
            raise RolloutError("a second turn needs an external_transition")
        return self._fitted(task, self._transition(task, history), turn=len(history))

    def _fitted(self, task: Task, external_N: Sequence[str | None], turn: int) -> tuple[Prompt, ...] | None:
        """Formats and encodes prompts under the overlong-prompt rule; None if any agent's must be dropped."""
        where = f"task {task.uid}, turn {turn + 1}"
        prompts_N = []
        for agent, external in zip(self.team.agents, external_N, strict=True):
            try:
                text = agent.formatter(task, external)
            except DataError as error:
                raise RolloutError(f"{error}, turn {turn + 1}") from error
            prompt = fit_prompt(agent, text, self.config, where)
            if prompt is None:
                self.num_dropped_prompts += 1
                return None
            self.num_truncated_prompts += prompt.text != text
            prompts_N.append(prompt)
        return tuple(prompts_N)

    def _play(self, level: Sequence[OpenNode]) -> None:
        """Samples and scores all nodes of a turn, as many at once as `max_rollout_rows` allows.

        Reward workers score the nodes of one batch while the next is sampled.
        """
        size = max(1, self.config.max_rollout_rows // self.config.num_generations)
        scores: list[list[Score]] = []
        try:
            for start in range(0, len(level), size):
                batch = level[start : start + size]
                with self.clock.timed("sampling"):
                    self._sample(batch)
                scores += [self._scores(node) for node in batch]
            with self.clock.timed("reward"):
                for node, score_J in zip(level, scores, strict=True):
                    pairs = zip(self._index_J, score_J, strict=True)
                    node.joint_actions_J = tuple(joint_action(index_N, score()) for index_N, score in pairs)
        except BaseException:
            if self._workers is not None:
                self._workers.shutdown(wait=False, cancel_futures=True)
            raise

    def _sample(self, nodes: Sequence[OpenNode]) -> None:
        completions_N_P_K = sample_team(
            self.team,
            [node.prompts_N for node in nodes],
            [node.place for node in nodes],
            self.config.num_generations,
            self.sampling,
            "sample",
        )
        for p, node in enumerate(nodes):
            node.completions_N_K = tuple(completions_P_K[p] for completions_P_K in completions_N_P_K)

    def _scores(self, node: OpenNode) -> list[Score]:
        """What returns the rewards of a node's joint actions; workers, if there are any, begin at once."""
        where = f"task {node.task.uid}, turn {node.turn + 1}"
        scores: list[Score] = [
            partial(
                self.reward,
                node.played(index_N)[-1].actions_N,
                node.prompts_N[0].text,
                node.task,
                f"{where}, joint action {j}",
            )
            for j, index_N in enumerate(self._index_J)
        ]
        return scores if self._workers is None else [self._workers.submit(score).result for score in scores]

    def _expand(self, node: OpenNode) -> list[OpenNode]:
        """One child per joint action, or none at the horizon or where the node's reward ends the branch."""
        if node.turn + 1 == self.config.num_turns:
            node.ended = "horizon"
        elif self._terminates(node):
            node.ended = "early_termination"
        else:
            for j, action in enumerate(node.joint_actions_J):
                history = node.played(action.index_N)
                prompts_N = self.next_prompts(node.task, history)
                ended = "" if prompts_N is not None else "overlong_prompt"
                node.children.append(OpenNode(node.task, (*node.place, j), prompts_N or (), history, ended=ended))
        return node.children

    def _terminates(self, node: OpenNode) -> bool:
        threshold = self.config.early_termination_threshold
        scored = [action.reward for action in node.joint_actions_J if action.reward is not None]
        return threshold is not None and bool(scored) and mean(scored) > threshold


def joint_action(index_N: tuple[int, ...], reward: Reward) -> JointAction:
    """A scored joint action."""
    return JointAction(index_N, reward.value, reward.components)


def numbered(node: OpenNode, env_step: int) -> tuple[Node, int]:
    """Freezes a tree, numbering env_step depth-first in pre-order from `env_step`.

    Returns:
        The frozen node, and the count after its whole subtree.
    """
    env_step += len(node.joint_actions_J)
    own_step = env_step
    children = []
    for child in node.children:
        frozen, env_step = numbered(child, env_step)
        children.append(frozen)
    frozen = Node(
        turn=node.turn,
        prompts_N=node.prompts_N,
        completions_N_K=node.completions_N_K,
        joint_actions_J=node.joint_actions_J,
        children_J=tuple(children),
        env_step=own_step,
        ended=node.ended,
    )
    return frozen, env_step
