"""`MAGRPOConfig` and its three variants: every setting of the algorithm, with its default and valid range."""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_runner.old_names import CONFIG_NAMES, takes_old_names
from marl_runner.setting_rules import COMPAT, check_devices, check_values, normalized

Config = TypeVar("Config")

ALGORITHMS = {"mean": "MAGRPO", "raw": "MAREINFORCE", "rloo": "MARLOO", "max": "MAReMax"}
"""Advantage mode → the algorithm it makes; a mode of the user's own goes by its own name."""


class Unstated(int):
    """A team size that nobody stated: what the trainer is told goes before it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> int:
        # `dataclasses.asdict` copies deeply, and YAML and OmegaConf take plain numbers only.
        return int(self)


UNSTATED_TEAM_SIZE = Unstated(2)


def with_old_names(config_class: type[Config]) -> type[Config]:
    """A config class whose constructor takes the settings' names of older CoMLRL versions too."""
    config_class.__init__ = takes_old_names(CONFIG_NAMES)(config_class.__init__)  # type: ignore[method-assign]
    return config_class


@with_old_names
@dataclass(frozen=True, kw_only=True)
class MAGRPOConfig:
    """Settings of multi-agent REINFORCE with the group mean as baseline.

    Attributes:
        num_agents: Team size, >= 1; where it is not stated, the trainer's.
        num_turns: Turns of an episode, >= 1; more than one needs an external transition.
        num_train_epochs: Passes over the training tasks, >= 1.
        agent_learning_rate: AdamW's rate, > 0.
        logging_steps: Env steps between two training events, >= 1.
        num_generations: K, completions of each agent at each node, >= 2.
        max_new_tokens: Most tokens of a completion, >= 1.
        temperature: Sampling temperature, > 0.
        top_p: Nucleus mass, in (0, 1]; 1 is off.
        top_k: Most likely tokens kept, >= 1; None is off.
        discount: Weight of the next turn's mean return, in [0, 1].
        joint_mode: "aligned" or "cross" (aliases "align", "crossed"), or a JointMode.
        early_termination_threshold: A node whose mean reward is greater gets no children; None is off.
        external_prompt_passthrough: Send the transition's prompts as they are, past the formatters.
        advantage_mode: "mean", "max", "rloo" or "raw", or an AdvantageMode.
        advantage_normalization: Centre and scale the advantages of each group.
        rollout_buffer_size: Node samples an agent collects before it updates, >= 1.
        train_batch_size: Node samples of one optimiser step, >= 1; None is rollout_buffer_size.
        eval_interval: Evaluate before tasks whose index is a multiple of it, >= 0; 0 never evaluates.
        eval_num_samples: Tasks of one evaluation, >= 0; 0 evaluates none.
        eval_batch_size: Tasks evaluated together, >= 1.
        parallel_training: "none", or "mp" to run the agents concurrently, each on its own device.
        agent_devices: One device or one per agent ("cpu", "cuda:0", "auto"); required by "mp".
        reference_kl_enabled: Penalise distance from a frozen copy of each agent.
        reference_kl_coef: Weight of that penalty, >= 0.
        reference_devices: One device or one per reference; None puts each beside its agent.
        seed: Source of every random stream, >= 0.
        max_grad_norm: Gradient norm is clipped to it, > 0; None never clips.
        weight_decay: AdamW's, >= 0.
        lr_scheduler: "constant", "linear" or "cosine", over the updates that full trees would make.
        warmup_steps: Updates over which the rate rises from 0, >= 0.
        shuffle: Draw a new task order each epoch.
        mixed_precision: "none", or "bf16" for bfloat16 matrix products over float32 weights.
        gradient_checkpointing: Compute activations again in the backward pass instead of keeping them.
        node_weighting: "uniform", or "objective" to weigh a node by 1 / (nodes a full tree has at its turn).
        compat: None, or "comlrl-1.4" to reproduce that version's results (last token unscored, one optimiser
            step per turn and minibatch, discount ignored, advantages in float32).
        max_rollout_rows: Most completions sampled in one batch, >= num_generations.
        micro_batch_tokens: Tokens of one forward and backward pass of the update, >= 1, or what two completions
            take; None is 512 on a CPU and 8192 elsewhere.
        max_prompt_tokens: Longest prompt, >= 1; None is what the model's context leaves.
        overlong_prompt: "error", "drop" (the task, or the branch) or "truncate" (keeps the tail).
        nonfinite_reward: "error", or "abstain" to leave NaN and infinite rewards out and count them.
        reward_num_workers: Threads that score joint actions, >= 1; more than one needs a reward that allows it.
        output_dir: Deprecated, as older CoMLRL versions had it: run folders are made in it; None is "outputs".

    Raises:
        ConfigError: A value is out of its range.
    """

    num_agents: int = UNSTATED_TEAM_SIZE
    num_turns: int = 2
    num_train_epochs: int = 20
    agent_learning_rate: float = 5e-6
    logging_steps: int = 50
    num_generations: int = 4
    max_new_tokens: int = 256
    temperature: float = 0.6
    top_p: float = 0.6
    top_k: int | None = 50
    discount: float = 1.0
    joint_mode: Any = "aligned"
    early_termination_threshold: float | None = -0.2
    external_prompt_passthrough: bool = False
    advantage_mode: Any = "mean"
    advantage_normalization: bool = True
    rollout_buffer_size: int = 2
    train_batch_size: int | None = None
    eval_interval: int = 16
    eval_num_samples: int = 4
    eval_batch_size: int = 1
    parallel_training: str | None = "none"
    agent_devices: Any = None
    reference_kl_enabled: bool = False
    reference_kl_coef: float = 0.1
    reference_devices: Any = None
    seed: int = 0
    max_grad_norm: float | None = None
    weight_decay: float = 0.01
    lr_scheduler: str = "constant"
    warmup_steps: int = 0
    shuffle: bool = False
    mixed_precision: str = "none"
    gradient_checkpointing: bool = False
    node_weighting: str = "uniform"
    compat: str | None = None
    max_rollout_rows: int = 64
    micro_batch_tokens: int | None = None
    max_prompt_tokens: int | None = None
    overlong_prompt: str = "error"
    nonfinite_reward: str = "error"
    reward_num_workers: int = 1
    output_dir: str | None = None

    def __post_init__(self) -> None:
        for name, value in normalized(vars(self)).items():
            object.__setattr__(self, name, value)
        check_values(vars(self))
        check_devices(vars(self), self.stated_num_agents)
        if self.output_dir is not None:
            # From the generated __init__, through the one that takes old names, to the caller.
            warnings.warn("output_dir is an argument of the trainer now", DeprecationWarning, stacklevel=4)

    def __deepcopy__(self, memo: dict[int, Any]) -> MAGRPOConfig:
        settings = copy.copy(self)
        for name, value in vars(self).items():
            # A size that nobody stated stays so, unlike in `asdict`.
            object.__setattr__(settings, name, value if isinstance(value, Unstated) else copy.deepcopy(value, memo))
        return settings

    @property
    def stated_num_agents(self) -> int | None:
        """`num_agents`, or None where it is the default, which gives way to what the trainer is told."""
        return None if isinstance(self.num_agents, Unstated) else self.num_agents

    def for_team(self, size: int) -> MAGRPOConfig:
        """These settings with the team's size in them, where they did not state one.

        Raises:
            ConfigError: There are neither one nor `size` devices.
        """
        if self.stated_num_agents is not None:
            return self
        # Not `replace`, which calls the constructor: a subclass may have one of its own.
        settings = copy.copy(self)
        object.__setattr__(settings, "num_agents", size)
        check_devices(vars(settings), size)
        return settings

    @property
    def applied_discount(self) -> float:
        """`discount`, which compat ignores as comlrl 1.4 does."""
        return 1.0 if self.compat == COMPAT else self.discount


@with_old_names
@dataclass(frozen=True, kw_only=True)
class MAREINFORCEConfig(MAGRPOConfig):
    """MAGRPOConfig without a baseline."""

    advantage_mode: Any = "raw"


@with_old_names
@dataclass(frozen=True, kw_only=True)
class MARLOOConfig(MAGRPOConfig):
    """MAGRPOConfig with the leave-one-out baseline."""

    advantage_mode: Any = "rloo"


@with_old_names
@dataclass(frozen=True, kw_only=True)
class MAReMaxConfig(MAGRPOConfig):
    """MAGRPOConfig with the group maximum as baseline."""

    advantage_mode: Any = "max"
