"""The one place where metric names are made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import get_args

from marl_runner.phases import Phase
from marl_runner.types import Metrics, Node, Reward, Sample, UpdateStats


def reward_name(turn: int) -> str:
    """Metric of the mean immediate reward of a turn, counted from 0."""
    return f"turn_{turn + 1}/reward_mean"


def return_name(turn: int) -> str:
    """Metric of the mean return of a turn, counted from 0."""
    return f"turn_{turn + 1}/expected_return"


def component_name(turn: int, component: str) -> str:
    """Metric of the mean of one component of a turn's rewards, the turn counted from 0."""
    return f"turn_{turn + 1}/reward/{component}"


def pass_name(k: int, turn: int | None = None) -> str:
    """Metric of pass@k at a turn counted from 0, or at the last turn played where none is given."""
    return f"pass@{k}" if turn is None else f"turn_{turn + 1}/pass@{k}"


def zero_signal_name(agent: int) -> str:
    """Metric of the fraction of an agent's groups whose advantages are all zero or absent."""
    return f"agent_{agent}/zero_signal_fraction"


class TrainWindow:
    """Collects trees between two training events and averages them."""

    def __init__(self) -> None:
        self._values: dict[str, list[float]] = defaultdict(list)
        self.trained_tokens = 0
        self._generated_tokens = 0
        self._abstained = 0

    def add(self, root: Node, samples: Iterable[Sample], generated_tokens: int) -> None:
        """Adds one task's tree, its samples, and how many tokens were sampled for it."""
        self._generated_tokens += generated_tokens
        for node in root.walk():
            self._add_node(node)
        for sample in samples:
            zero = all(not advantage for advantage in sample.advantages_K)
            self._values[zero_signal_name(sample.agent)].append(float(zero))

    def _add_node(self, node: Node) -> None:
        for action, value in zip(node.joint_actions_J, node.returns_J, strict=True):
            if action.reward is None:
                self._abstained += 1
                continue
            self._values[reward_name(node.turn)].append(action.reward)
            for component, number in action.components.items():
                self._values[component_name(node.turn, component)].append(number)
            if value is not None:
                self._values[return_name(node.turn)].append(value)
        for agent, completions_K in enumerate(node.completions_N_K):
            for completion in completions_K:
                name = f"agent_{agent}"
                self._values[f"{name}/completion_tokens_mean"].append(len(completion.token_ids))
                self._values[f"{name}/truncated_fraction"].append(float(not completion.finished))
                if completion.reference_kl is not None:
                    self._values[f"{name}/kl_mean"].append(completion.reference_kl)

    def metrics(self, seconds: Mapping[Phase, float]) -> Metrics:
        """Means of everything added, and the seconds of each phase with the tokens handled in them."""
        metrics = {name: mean(values) for name, values in sorted(self._values.items())}
        metrics["reward/abstained"] = float(self._abstained)
        for phase in get_args(Phase):
            metrics[f"time/{phase}_s"] = seconds.get(phase, 0.0)
        for name, tokens, phase in (
            ("generated", self._generated_tokens, "sampling"),
            ("trained", self.trained_tokens, "update"),
        ):
            if metrics[f"time/{phase}_s"] > 0:
                metrics[f"throughput/{name}_tokens_per_s"] = tokens / metrics[f"time/{phase}_s"]
        return metrics


def update_metrics(stats_N: Sequence[UpdateStats]) -> Metrics:
    """One optimiser step: of one agent, or of all that share its weights."""
    metrics: Metrics = {}
    for stats in stats_N:
        name = f"agent_{stats.agent}"
        metrics[f"{name}/loss"] = stats.loss
        metrics[f"{name}/grad_norm"] = stats.grad_norm
        metrics[f"{name}/trained_tokens"] = float(stats.tokens)
        metrics[f"{name}/learning_rate"] = stats.learning_rate
        if stats.log_prob_mismatch is not None:
            metrics[f"{name}/log_prob_mismatch"] = stats.log_prob_mismatch
    return metrics


def evaluation_metrics(rewards_S_H: Sequence[Sequence[Reward]], discount: float) -> Metrics:
    """Mean reward, components and reward-to-go of each turn over evaluated tasks.

    Args:
        rewards_S_H: Per task, the reward of each turn; its value is None where it abstained or the path ended.
        discount: Weight of the next turn.

    Returns:
        `eval/turn_k/reward_mean` and `eval/turn_k/reward/<component>` over the tasks that have it, and
        `eval/turn_k/expected_return` over the tasks that have every reward from turn k on.
    """
    rewards: dict[int, list[float]] = defaultdict(list)
    components: dict[tuple[int, str], list[float]] = defaultdict(list)
    returns: dict[int, list[float]] = defaultdict(list)
    for rewards_H in rewards_S_H:
        to_go: float | None = 0.0
        for turn, reward in reversed(list(enumerate(rewards_H))):
            if reward.value is not None:
                rewards[turn].append(reward.value)
                for component, number in reward.components.items():
                    components[turn, component].append(number)
            to_go = None if reward.value is None or to_go is None else reward.value + discount * to_go
            if to_go is not None:
                returns[turn].append(to_go)
    named = {reward_name(turn): values for turn, values in sorted(rewards.items())}
    named |= {component_name(turn, component): values for (turn, component), values in sorted(components.items())}
    named |= {return_name(turn): values for turn, values in sorted(returns.items())}
    return {f"eval/{name}": mean(values) for name, values in named.items()}


def generated_tokens(root: Node) -> int:
    """Sampled tokens of a whole tree."""
    return sum(
        len(completion.token_ids)
        for node in root.walk()
        for completions_K in node.completions_N_K
        for completion in completions_K
    )


def mean_reward(root: Node) -> float | None:
    """Mean immediate reward over all scored joint actions of a tree."""
    scored = [a.reward for node in root.walk() for a in node.joint_actions_J if a.reward is not None]
    return mean(scored) if scored else None


def mean_return(root: Node) -> float | None:
    """Mean return of a tree's root."""
    scored = [value for value in root.returns_J if value is not None]
    return mean(scored) if scored else None
