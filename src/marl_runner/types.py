"""The vocabulary of marl-runner: the values that flow from a dataset row to a weight update.

Axis suffixes, used everywhere: `N` agents, `K` completions of one agent at one node, `J` joint actions at a
node (K when aligned, K**N when crossed), `H` turns, `T` tokens. `completions_N_K[n][k]` is agent n's
completion k. `P` counts prompts of one batch. Turns count from 0 in code and from 1 in metric names.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

Metrics = dict[str, float]


@dataclass(frozen=True)
class Task:
    """One dataset row: `uid` names it in messages and files, `fields` is the row itself."""

    uid: str
    fields: Mapping[str, Any]

    @property
    def prompt(self) -> str:
        """The row's `prompt` column, or "" where the row has none and a formatter builds the text."""
        prompt = self.fields.get("prompt")
        return "" if prompt is None else str(prompt)

    def row(self) -> dict[str, Any]:
        """A copy of the row for a hook, which may change it as it likes."""
        return copy.deepcopy(dict(self.fields))


@dataclass(frozen=True)
class Prompt:
    """What one agent was really sent: the text, and the very token ids the model saw (no padding)."""

    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True)
class Completion:
    """One sampled answer.

    Attributes:
        text: Decoded text without special tokens; for rewards and people, never encoded again.
        token_ids: Every sampled token through the first end-of-sequence token inclusive; no padding.
        finished: True if an end-of-sequence token was sampled, False if cut by `max_new_tokens`.
        reference_kl: Summed k3 estimate against the frozen reference, in nats; None without a reference.
        log_prob: Log-probability when sampled, at temperature 1, in nats; None where it was not measured.
    """

    text: str
    token_ids: tuple[int, ...]
    finished: bool
    reference_kl: float | None = None
    log_prob: float | None = None


Row = tuple[Prompt, Completion]
"""What is scored: a completion under the prompt it was sampled from."""


@dataclass(frozen=True)
class Reward:
    """What a reward function says of one joint action.

    Attributes:
        value: The number that is trained on; None where the reward abstained.
        components: The named parts whose sum it is before the reward processor; none if it names none.
    """

    value: float | None
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class JointAction:
    """One completion index per agent, with its shared reward (None when it abstained) and the reward's components."""

    index_N: tuple[int, ...]
    reward: float | None
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """One step of a branch's history: what each agent was sent, and what each answered (texts)."""

    prompts_N: tuple[str, ...]
    actions_N: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """One node of a rollout tree.

    Attributes:
        turn: Depth in the tree, from 0.
        prompts_N: What each agent was sent here.
        completions_N_K: What each agent sampled here.
        joint_actions_J: The scored joint actions, in the joint mode's order.
        children_J: One child per joint action, or () where the branch ended.
        env_step: Joint actions counted so far, this node's J included, in depth-first pre-order.
        returns_J: Reward plus discounted mean return of the child; None where nothing was scored.
        ended: Why there are no children: "horizon", "early_termination" or "overlong_prompt"; else "".
    """

    turn: int
    prompts_N: tuple[Prompt, ...]
    completions_N_K: tuple[tuple[Completion, ...], ...]
    joint_actions_J: tuple[JointAction, ...]
    children_J: tuple[Node, ...]
    env_step: int
    returns_J: tuple[float | None, ...] = ()
    ended: str = ""

    def walk(self) -> Iterator[Node]:
        """This node and all below it, depth-first in pre-order, which is env-step order."""
        yield self
        for child in self.children_J:
            yield from child.walk()


@dataclass(frozen=True)
class Sample:
    """What one agent learns from at one node.

    Attributes:
        agent: Agent index.
        turn: Turn of the node, from 0.
        env_step: The node's `env_step`.
        prompt: What the agent was sent.
        completions_K: What it sampled.
        returns_K: Return credited to each completion, before the reference penalty; None abstains.
        advantages_K: Weight of each completion's log-probability; None is left out of the loss.
        weight: Weight of this node in the loss (1 under uniform node weighting).
    """

    agent: int
    turn: int
    env_step: int
    prompt: Prompt
    completions_K: tuple[Completion, ...]
    returns_K: tuple[float | None, ...]
    advantages_K: tuple[float | None, ...]
    weight: float = 1.0

    @property
    def trains(self) -> bool:
        """False when the whole group abstained, so that there is nothing to learn from."""
        return any(advantage is not None for advantage in self.advantages_K)


@dataclass(frozen=True)
class UpdateStats:
    """One agent's part in an optimiser step.

    Attributes:
        agent: Agent index.
        loss: Mean loss of its minibatch.
        grad_norm: Euclidean norm before clipping, of the sum over all agents that share the weights.
        tokens: Trained tokens of its minibatch.
        learning_rate: Rate of the step.
        log_prob_mismatch: Mean over its completions of |log-probability scored - sampled| per token, in nats; None
            where the sampler did not measure it.
    """

    agent: int
    loss: float
    grad_norm: float
    tokens: int
    learning_rate: float
    log_prob_mismatch: float | None = None


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn; every field is explicit, nothing is read from a checkpoint.

    Attributes:
        max_new_tokens: Most tokens of one completion, >= 1.
        temperature: > 0; divides the logits.
        top_p: Nucleus mass in (0, 1]; 1 is off.
        top_k: Number of most likely tokens kept; None is off.
    """

    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int | None


@dataclass(frozen=True)
class Event:
    """One line of metrics.jsonl: `kind` is train, update or eval; `metrics` maps `area/name` to a float."""

    kind: str
    env_step: int
    epoch: int
    metrics: Metrics


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for the console: tasks done of `num_tasks`, counted over all epochs."""

    epoch: int
    num_epochs: int
    tasks_done: int
    num_tasks: int | None
    env_step: int
    generated_tokens: int
    elapsed_s: float
    reward_mean: float | None = None
    return_mean: float | None = None


@runtime_checkable
class AdvantageMode(Protocol):
    """Baseline over one agent's generations at one node: returns_K (all present) → advantages_K."""

    @property
    def name(self) -> str: ...

    def __call__(self, returns_K: Sequence[float]) -> list[float]: ...


@runtime_checkable
class JointMode(Protocol):
    """Owns both which joint actions are scored and how their returns are credited to completions."""

    @property
    def name(self) -> str: ...

    def index(self, num_agents: int, num_generations: int) -> list[tuple[int, ...]]: ...

    def size(self, num_agents: int, num_generations: int) -> int: ...

    def credit(
        self,
        index_J: Sequence[tuple[int, ...]],
        returns_J: Sequence[float | None],
        agent: int,
        num_generations: int,
    ) -> list[float | None]: ...


@runtime_checkable
class DeclaresRange(Protocol):
    """A reward that says its least and greatest value, for the warnings at start."""

    @property
    def reward_range(self) -> tuple[float, float] | None: ...


@runtime_checkable
class DeclaresFields(Protocol):
    """A reward that says which dataset columns it reads, checked before a model is loaded."""

    @property
    def required_fields(self) -> tuple[str, ...]: ...


@runtime_checkable
class DeclaresTeam(Protocol):
    """A reward that says the smallest team it can score."""

    @property
    def min_agents(self) -> int: ...


@runtime_checkable
class ChecksRows(Protocol):
    """A reward that says what makes a row unusable for it, checked before a model is loaded; "" if nothing does."""

    def check_row(self, row: Mapping[str, Any]) -> str: ...


@runtime_checkable
class Starts(Protocol):
    """A reward or transition with processes of its own, started before models and tokenizers are loaded."""

    def start(self) -> None: ...


@runtime_checkable
class Counted(Protocol):
    """A reward or transition that counts what it does, for summary.json."""

    @property
    def counts(self) -> Mapping[str, int]: ...


class Tracker(Protocol):
    """Receives what happened; never changes it."""

    def log(self, event: Event) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def rollout(self, task: Task, root: Node, samples: Sequence[Sample]) -> None: ...

    def close(self, status: str) -> None: ...


@dataclass(frozen=True)
class Splits:
    """Dataset rows: what is trained on, and what is evaluated on (may be empty)."""

    train: list[dict[str, Any]]
    eval: list[dict[str, Any]] = field(default_factory=list)
