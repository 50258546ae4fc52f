"""One job trained twice: by comlrl 1.4.3, and here under `compat="comlrl-1.4"`.

Both sides start from copies of two small models, get the same prescribed completions (all of one length, so that
nothing is padded) and shuffle their buffers with equally seeded streams.
"""

from __future__ import annotations

import copy
import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from comlrl.trainers.reinforce import magrpo as reference

from marl_runner.policies.hf import HFPolicy
from marl_runner.policies.tiny import CHARACTERS, character_tokenizer, tiny_model
from marl_runner.setting_rules import COMPAT
from marl_runner.settings import MAGRPOConfig
from marl_runner.streams import derive_seed
from marl_runner.tracking.options import Trackers
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Completion, Prompt, Sampling

NUM_AGENTS = 2
PROMPTS = ("begin", "now", "at last", "say it")
NUM_PROMPTS = {1: 4, 2: 2, 3: 1}
"""By number of turns, fewer as trees grow; two epochs, so that buffers carry over nodes and tasks and are flushed."""
NUM_GENERATIONS = {("aligned", 1): 4, ("aligned", 2): 3, ("aligned", 3): 2, ("cross", 1): 3, ("cross", 2): 3}
"""By joint mode and number of turns; 2 where not named."""


@dataclass(frozen=True)
class Case:
    """Settings of one comparison, the same for both sides."""

    advantage_mode: str = "mean"
    advantage_normalization: bool = True
    joint_mode: str = "aligned"
    num_turns: int = 2
    rollout_buffer_size: int = 2
    train_batch_size: int | None = None
    reference_kl_enabled: bool = False
    discount: float = 1.0
    early_termination_threshold: float | None = None
    max_new_tokens: int = 4

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration of either side."""
        return {
            **dataclasses.asdict(self),
            "num_agents": NUM_AGENTS,
            "num_generations": NUM_GENERATIONS.get((self.joint_mode, self.num_turns), 2),
            "num_train_epochs": 2,
            "agent_learning_rate": 1e-3,
            "reference_kl_coef": 0.5,
            "eval_interval": 0,
        }

    @property
    def rows(self) -> list[dict[str, str]]:
        """The training data."""
        return [{"prompt": prompt} for prompt in PROMPTS[: NUM_PROMPTS[self.num_turns]]]


Group = list[tuple[int, int]]
"""Turn and env step of each sample of one shuffle, in the order before it."""


@dataclass(frozen=True)
class Trained:
    """What training left: weights by name, optimiser steps, and what was shuffled, per agent."""

    weights_N: list[dict[str, torch.Tensor]]
    steps_N: list[int]
    groups_N: list[list[Group]]


@dataclass(frozen=True)
class Comparison:
    """One case measured.

    Attributes:
        case: Its settings.
        difference: Largest over all tensors of max|ours - theirs| / max|theirs|.
        movement: The same measure between the reference before and after training.
        same_work: Both sides shuffled the same samples in the same order and took as many optimiser steps.
        num_nodes: Rollout nodes of the reference.
        seconds: Wall time of both sides.
    """

    case: Case
    difference: float
    movement: float
    same_work: bool
    num_nodes: int
    seconds: float


def prescribed(agent: int, prompt_ids: Sequence[int], k: int, num_tokens: int) -> list[int]:
    """Completion k of an agent to a prompt: letters and marks only, never an end or padding token."""
    rng = random.Random(f"{agent} {k} {list(prompt_ids)}")
    return [rng.randrange(2, len(CHARACTERS) + 2) for _ in range(num_tokens)]


def reward(first: Sequence[str], second: Sequence[str]) -> list[float]:
    """Multiples of 1/8 from -4 to 4, which every float type holds exactly."""
    return [random.Random(f"{a}|{b}").randint(-32, 32) / 8 for a, b in zip(first, second, strict=True)]


def transition(
    prompt: str,
    agent_completions: Sequence[str],
    num_agents: int,
    prompt_history_per_agent: Sequence[Sequence[str]],
    response_history_per_agent: Sequence[Sequence[str]],
) -> list[str]:
    """Prompts that depend on everything a transition is given."""
    return [
        prompt[:2] + prompt_history_per_agent[n][-1][-2:] + "".join(response_history_per_agent[n]) + other
        for n, other in zip(range(num_agents), reversed(agent_completions), strict=True)
    ]


def initial_models(dtype: torch.dtype = torch.float32) -> list[Any]:
    """Two different models.

    Their matrices are 20 times wider than usual, so that gradients are far above rounding: Adam moves a weight
    whose gradient cancels by a whole learning rate, in a direction that rounding decides.
    """
    models = [tiny_model(seed=n, hidden_size=8, num_layers=1, num_heads=2, context_length=64) for n in (1, 2)]
    for model in models:
        for parameter in model.to(dtype).parameters():
            if parameter.dim() > 1:
                parameter.data *= 20
    return models


class RecordedShuffle(random.Random):
    """A stream that remembers what it shuffled; `place` tells a sample's turn and env step."""

    def __init__(self, agent: int, place: Callable[[Any], tuple[int, int]]) -> None:
        super().__init__(derive_seed(0, "update", agent))
        self.place = place
        self.groups: list[Group] = []

    def shuffle(self, x: Any) -> None:
        """Shuffles in place."""
        self.groups.append([self.place(sample) for sample in x])
        super().shuffle(x)


class PrescribedPolicy(HFPolicy):
    """Our side's model, which says what is prescribed."""

    def __init__(self, agent: int, model: Any) -> None:
        super().__init__(model, character_tokenizer(), torch.device("cpu"))
        self.agent = agent

    def generate(
        self, prompts: Sequence[Prompt], num_completions: int, sampling: Sampling, seeds: Sequence[int]
    ) -> list[tuple[Completion, ...]]:
        """The prescribed completions of each prompt."""
        answers = []
        for prompt in prompts:
            rows = [
                prescribed(self.agent, prompt.token_ids, k, sampling.max_new_tokens) for k in range(num_completions)
            ]
            answers.append(tuple(Completion(self.decode(row), tuple(row), finished=False) for row in rows))
        return answers


class PrescribedReference(reference.MAGRPOTrainer):
    """The reference, with one seeded shuffle per agent in place of the global one."""

    shuffles: Sequence[RecordedShuffle]

    def _update_from_samples(self, agent_idx: int, samples: list[Any]) -> None:
        with mock.patch.object(reference.random, "shuffle", self.shuffles[agent_idx].shuffle):
            super()._update_from_samples(agent_idx, samples)


def prescribed_generate(agent: int) -> Callable[..., Any]:
    """What stands in for `model.generate` on the reference's side."""

    def generate(input_ids: torch.Tensor, num_return_sequences: int, max_new_tokens: int, **_: Any) -> Any:
        prompt = input_ids[0].tolist()
        rows = [prompt + prescribed(agent, prompt, k, max_new_tokens) for k in range(num_return_sequences)]
        return SimpleNamespace(sequences=torch.tensor(rows))

    return generate


def train_ours(models: Sequence[Any], case: Case, changes: Mapping[str, Any] | None = None) -> Trained:
    """Trains copies of the models here, under compat unless `changes` say otherwise."""
    policies = [PrescribedPolicy(n, copy.deepcopy(model)) for n, model in enumerate(models)]
    trainer = MAGRPOTrainer(
        agents=policies,
        train_dataset=case.rows,
        reward_func=reward,
        external_transition=transition,
        args=MAGRPOConfig(**{**case.settings, "compat": COMPAT, **(changes or {})}),
        tracker=Trackers([]),
    )
    shuffles = [RecordedShuffle(n, lambda sample: (sample.turn, sample.env_step)) for n in range(NUM_AGENTS)]
    for agent, shuffle in zip(trainer.team.agents, shuffles, strict=True):
        agent.update_rng = shuffle
    steps_N = counted_steps(learner.optimizer for learner in trainer.team.learners)
    trainer.train()
    return Trained([weights(policy.model) for policy in policies], steps_N, [stream.groups for stream in shuffles])


def train_theirs(models: Sequence[Any], case: Case) -> Trained:
    """Trains copies of the models with comlrl."""
    agents = [copy.deepcopy(model) for model in models]
    for n, model in enumerate(agents):
        model.generate = prescribed_generate(n)
    trainer = PrescribedReference(
        agents=agents,
        tokenizer=character_tokenizer(),
        train_dataset=case.rows,
        reward_func=reward,
        external_transition=transition,
        args=reference.MAGRPOConfig(**case.settings),
    )
    trainer.verbose = False
    shuffles = [RecordedShuffle(n, lambda sample: (sample.turn_idx, sample.node_env_step)) for n in range(NUM_AGENTS)]
    trainer.shuffles = shuffles
    steps_N = counted_steps(trainer.optimizers)
    trainer.train()
    return Trained([weights(model) for model in agents], steps_N, [stream.groups for stream in shuffles])


def counted_steps(optimizers: Iterable[torch.optim.Optimizer]) -> list[int]:
    """Numbers that grow as the optimisers step."""
    steps_N: list[int] = []
    for n, optimizer in enumerate(optimizers):
        steps_N.append(0)

        def count(*_: Any, n: int = n) -> None:
            steps_N[n] += 1

        optimizer.register_step_post_hook(count)
    return steps_N


def weights(model: Any) -> dict[str, torch.Tensor]:
    """Every parameter by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def distance(ours_N: Sequence[Mapping[str, torch.Tensor]], theirs_N: Sequence[Mapping[str, torch.Tensor]]) -> float:
    """Largest over agents and tensors of max|ours - theirs| / max|theirs|."""
    return max(
        float((ours[name] - theirs[name]).abs().max() / theirs[name].abs().max())
        for ours, theirs in zip(ours_N, theirs_N, strict=True)
        for name in theirs
    )


def compare(models: Sequence[Any], case: Case, changes: Mapping[str, Any] | None = None) -> Comparison:
    """Trains both sides on one case; `changes` alter our settings only, which should then not agree."""
    started = time.monotonic()
    ours, theirs = train_ours(models, case, changes), train_theirs(models, case)
    return Comparison(
        case=case,
        difference=distance(ours.weights_N, theirs.weights_N),
        movement=distance([weights(model) for model in models], theirs.weights_N),
        same_work=ours.steps_N == theirs.steps_N and ours.groups_N == theirs.groups_N,
        num_nodes=sum(len(group) for group in theirs.groups_N[0]),
        seconds=time.monotonic() - started,
    )
