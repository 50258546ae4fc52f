"""The rollout engine: grows one task's tree level by level.

All open nodes of a turn, of all branches, are sampled in one batched call per agent; `env_step` is numbered
depth-first afterwards, whatever order generation ran in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

from marl_runner.counts import tree_counts
from marl_runner.errors import DataError, RolloutError
from marl_runner.returns import with_returns
from marl_runner.rewards.call import RewardCaller
from marl_runner.sampling import fit_prompt, sample_team
from marl_runner.settings import MAGRPOConfig
from marl_runner.team import Team
from marl_runner.transitions.call import TransitionCaller
from marl_runner.types import Completion, JointAction, JointMode, Node, Prompt, Sampling, Task, Turn


@dataclass
class OpenNode:
    """A node while its tree grows; `history` is the branch that led to it."""

    turn: int
    prompts_N: tuple[Prompt, ...]
    history: tuple[Turn, ...]
    completions_N_K: tuple[tuple[Completion, ...], ...] = ()
    joint_actions_J: tuple[JointAction, ...] = ()
    children: list[OpenNode] = field(default_factory=list)
    ended: str = ""

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
        self.sampling = Sampling(config.max_new_tokens, config.temperature, config.top_p, config.top_k)
        self.num_dropped_prompts = 0
        self.num_truncated_prompts = 0
        self._transition = transition
        self.most_work = tree_counts(config, joint_mode.size(len(team.agents), config.num_generations))
        self._index_J = joint_mode.index(len(team.agents), config.num_generations)

    def rollout(self, task: Task, env_step: int) -> Node | None:
        """The scored tree of one task with its returns; None if its first prompt was dropped as overlong.

        Args:
            task: The dataset row.
            env_step: Joint actions counted before this task.

        Raises:
            RewardError, TransitionError, RolloutError: A hook failed, or a prompt is too long.
        """
        prompts_N = self.first_prompts(task)
        if prompts_N is None:
            return None
        root = OpenNode(turn=0, prompts_N=prompts_N, history=())
        level = [root]
        while level:
            self._sample_level(level)
            for node in level:
                self._score(node, task)
            level = [child for node in level for child in self._expand(node, task) if not child.ended]
        return with_returns(numbered(root, env_step)[0], self.config.applied_discount)

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

    def _sample_level(self, level: Sequence[OpenNode]) -> None:
        prompts_P_N = [node.prompts_N for node in level]
        completions_N_P_K = sample_team(
            self.team, prompts_P_N, self.config.num_generations, self.sampling, self.config.max_rollout_rows, "sample"
        )
        for p, node in enumerate(level):
            node.completions_N_K = tuple(completions_P_K[p] for completions_P_K in completions_N_P_K)

    def _score(self, node: OpenNode, task: Task) -> None:
        actions = []
        for j, index_N in enumerate(self._index_J):
            where = f"task {task.uid}, turn {node.turn + 1}, joint action {j}"
            reward = self.reward(node.played(index_N)[-1].actions_N, node.prompts_N[0].text, task, where)
            actions.append(JointAction(index_N, reward))
        node.joint_actions_J = tuple(actions)

    def _expand(self, node: OpenNode, task: Task) -> list[OpenNode]:
        """One child per joint action, or none at the horizon or where the node's reward ends the branch."""
        if node.turn + 1 == self.config.num_turns:
            node.ended = "horizon"
        elif self._terminates(node):
            node.ended = "early_termination"
        else:
            for action in node.joint_actions_J:
                history = node.played(action.index_N)
                prompts_N = self.next_prompts(task, history)
                ended = "" if prompts_N is not None else "overlong_prompt"
                node.children.append(OpenNode(node.turn + 1, prompts_N or (), history, ended=ended))
        return node.children

    def _terminates(self, node: OpenNode) -> bool:
        threshold = self.config.early_termination_threshold
        scored = [action.reward for action in node.joint_actions_J if action.reward is not None]
        return threshold is not None and bool(scored) and mean(scored) > threshold


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
