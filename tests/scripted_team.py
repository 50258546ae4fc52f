"""Teams of scripted policies, and a tracker that remembers: what the exact tests run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_runner.policies.scripted import ScriptedPolicy
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Completion, Event, JointAction, Node, Progress, Prompt, Sample, Task

END = 10
"""End-of-sequence id of a ScriptedPolicy with its default alphabet "abcdefghij"."""


class Recorder:
    """Keeps everything a trainer reports."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.trees: list[tuple[Task, Node, list[Sample]]] = []
        self.progresses: list[Progress] = []
        self.closed: list[str] = []

    def log(self, event: Event) -> None:
        self.events.append(event)

    def progress(self, progress: Progress) -> None:
        self.progresses.append(progress)

    def rollout(self, task: Task, root: Node, samples: Sequence[Sample]) -> None:
        self.trees.append((task, root, list(samples)))

    def close(self, status: str) -> None:
        self.closed.append(status)

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


def script(*texts: str) -> list[list[int]]:
    """Token ids of texts over the letters a-j, each through its end of sequence: "ab" → [0, 1, 10]."""
    return [[*("abcdefghij".index(letter) for letter in text), END] for text in texts]


def endless(*texts: str) -> Any:
    """The scripts of `texts`, over and over."""
    while True:
        yield from script(*texts)


def trainer_of(
    scripts: Sequence[Any], reward: Any, config: Any, rows: Any = None, trainer: Any = MAGRPOTrainer, **options: Any
) -> tuple[MAGRPOTrainer, Recorder]:
    """A trainer over scripted policies and the recorder it reports to."""
    recorder = Recorder()
    policies = [ScriptedPolicy(entries) for entries in scripts]
    rows = [{"prompt": "p"}] if rows is None else rows
    made = trainer(agents=policies, reward_func=reward, train_dataset=rows, args=config, tracker=recorder, **options)
    return made, recorder


def leaf(turn: int, rewards: Sequence[float | None], env_step: int = 0, num_agents: int = 1) -> Node:
    """An aligned node without children, whose completions have one token each."""
    return node(turn, rewards, (), env_step, num_agents)


def node(
    turn: int, rewards: Sequence[float | None], children: Sequence[Node], env_step: int = 0, num_agents: int = 1
) -> Node:
    """An aligned node with the given joint rewards."""
    K = len(rewards)
    completions_K = tuple(Completion("a", (0, END), True) for _ in range(K))
    return Node(
        turn=turn,
        prompts_N=(Prompt("p", (1,)),) * num_agents,
        completions_N_K=(completions_K,) * num_agents,
        joint_actions_J=tuple(JointAction((k,) * num_agents, reward) for k, reward in enumerate(rewards)),
        children_J=tuple(children),
        env_step=env_step,
    )
