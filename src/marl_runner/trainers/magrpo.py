"""`MAGRPOTrainer` and its three variants, under the reference implementation's names and meanings."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any, ClassVar

import torch

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.advice import advice
from marl_runner.counts import max_updates, tree_counts
from marl_runner.credit import CreditRules
from marl_runner.errors import ConfigError, DataError
from marl_runner.evaluate import EvalAggregator, EvalLogger, Evaluator
from marl_runner.formatters.call import PromptFormatter, per_agent
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.loading import fit_embeddings, load_model
from marl_runner.loop import Counters, TrainingLoop
from marl_runner.rewards.call import RewardCaller
from marl_runner.rollout import RolloutEngine
from marl_runner.settings import (
    MAGRPOConfig,
    MAREINFORCEConfig,
    MAReMaxConfig,
    MARLOOConfig,
)
from marl_runner.streams import derive_seed
from marl_runner.team import Team, make_agent, make_policy, resolve_devices
from marl_runner.tracking.options import default_trackers
from marl_runner.trainers.sources import (
    Source,
    check_model_config,
    resolve_models,
    resolve_sources,
    team_size,
)
from marl_runner.trainers.tasks import RepeatedTasks, check_first_prompts, known, tasks_of
from marl_runner.transitions.call import TransitionCaller
from marl_runner.types import Metrics, Tracker

advice_log = logging.getLogger("marl_runner.advice")


class MAGRPOTrainer:
    """Trains a team with multi-agent REINFORCE; the group mean is the baseline.

    Args:
        agent_model: Model identifier of N homogeneous agents.
        agents: One model identifier, transformers model or Policy per agent.
        num_agents: Team size; from `agents` or `args` if not given, else 2.
        tokenizer: One shared or one per agent; optional for identifiers.
        model_config: `dtype`, `attn_implementation`, `special_tokens` for loading.
        train_dataset: Rows to train on, needed by `train()`: a list of dicts, or any iterable of rows.
        eval_dataset: Rows to evaluate on.
        reward_func: `reward(*completions_per_agent)` → one number per joint action; required. Called once per
            joint action with lists of one text; receives `prompts` and `batch_items` if it names them.
        reward_processor: Applied to every reward.
        formatters: One callable or one per agent, from a row to the text sent.
        external_transition: Makes the next turn's prompts; required when `num_turns` > 1.
        wandb_config: `project`, `entity`, `name`, `group`, `tags`, `mode`; None starts no W&B run.
        eval_logger: Per-task metrics of an evaluation; works only with `eval_aggregator`.
        eval_aggregator: From those to logged metrics.
        args: The settings; default `config_class()` of the team's size.
        tracker: Told what happens; default writes `metrics.jsonl` and `rollouts.jsonl` into `output_dir`.
        output_dir: Folder of the default tracker; default `outputs/<algorithm>-<time>`.

    Raises:
        ConfigError: Arguments that are missing, contradict each other or do not fit.
        DataError: A row that cannot be formatted, or whose prompt is too long.
    """

    config_class: ClassVar[type[MAGRPOConfig]] = MAGRPOConfig
    algorithm: ClassVar[str] = "MAGRPO"

    def __init__(
        self,
        agent_model: str | None = None,
        agents: Sequence[Any] | None = None,
        num_agents: int | None = None,
        tokenizer: Any = None,
        model_config: Mapping[str, Any] | None = None,
        train_dataset: Iterable[Mapping[str, Any]] | None = None,
        eval_dataset: Iterable[Mapping[str, Any]] | None = None,
        reward_func: Callable[..., Any] | None = None,
        reward_processor: Callable[[float], float] | None = None,
        formatters: Callable[..., str] | Sequence[Callable[..., str]] | None = None,
        external_transition: Callable[..., Any] | None = None,
        wandb_config: Mapping[str, Any] | None = None,
        eval_logger: EvalLogger | None = None,
        eval_aggregator: EvalAggregator | None = None,
        args: MAGRPOConfig | None = None,
        *,
        tracker: Tracker | None = None,
        output_dir: str | Path | None = None,
    ) -> None:
        size = team_size(agents, num_agents, None if args is None else args.num_agents)
        self.args = self.config_class(num_agents=size) if args is None else args
        if reward_func is None:
            raise ConfigError("reward_func is required")
        if self.args.num_turns > 1 and external_transition is None:
            raise ConfigError(f"num_turns={self.args.num_turns} needs an external_transition; or set num_turns=1")
        reward = RewardCaller(reward_func, size, reward_processor, self.args.nonfinite_reward)
        transition = None if external_transition is None else TransitionCaller(external_transition, size)
        for warning in advice(self.args, reward_range(reward_func), reward_processor):
            advice_log.warning(warning)

        passthrough = self.args.external_prompt_passthrough
        prompt_formatters = [
            PromptFormatter(formatter, agent, passthrough)
            for agent, formatter in enumerate(per_agent(formatters, size))
        ]
        loading = check_model_config(model_config)
        special_tokens = loading.get("special_tokens")
        sources = resolve_sources(resolve_models(agent_model, agents, size), tokenizer, special_tokens)
        self.train_dataset = train_dataset
        self.eval_tasks = [] if eval_dataset is None else list(tasks_of(eval_dataset))
        known_tasks = self.eval_tasks if train_dataset is None else [*known(train_dataset), *self.eval_tasks]
        check_first_prompts(known_tasks, sources, prompt_formatters, self.args)

        self.team = self._load_team(sources, prompt_formatters, loading)
        joint_mode = resolve_mode(self.args.joint_mode, JOINT_MODES)
        self.rules = CreditRules(
            joint_mode=joint_mode,
            advantage_mode=resolve_mode(self.args.advantage_mode, ADVANTAGE_MODES),
            normalize=self.args.advantage_normalization,
            reference_kl_coef=self.args.reference_kl_coef,
            objective_weighting=self.args.node_weighting == "objective",
        )
        self.engine = RolloutEngine(self.team, reward, transition, joint_mode, self.args)
        self.evaluator = Evaluator(self.engine, self.eval_tasks, eval_logger, eval_aggregator, self.args)
        folder = (
            Path(output_dir) if output_dir else Path("outputs") / f"{self.algorithm}-{time.strftime('%Y%m%d-%H%M%S')}"
        )
        self.tracker = default_trackers(folder, wandb_config) if tracker is None else tracker
        self._closes_tracker = tracker is None
        self.counters = Counters()

    @property
    def num_agents(self) -> int:
        """Team size."""
        return len(self.team.agents)

    def train(self) -> Counters:
        """Trains for all epochs and evaluates once more at the end; returns what was done.

        Raises:
            ConfigError: There is no train_dataset.
            DataError: It has no rows.
            MarlRunnerError: A reward, transition, model or number failed, naming where.
        """
        if self.train_dataset is None:
            raise ConfigError("train() needs a train_dataset")
        tasks = RepeatedTasks(self.train_dataset)
        loop = TrainingLoop(self.team, self.engine, self.evaluator, self.rules, self.tracker, self.args)
        self.counters = loop.counters
        try:
            loop.run(tasks, tasks.length)
        except BaseException:
            self._close_tracker("failed")
            raise
        self._close_tracker("completed")
        if self.counters.tasks == 0:
            raise DataError("train_dataset has no rows")
        if self.counters.tasks == self.counters.dropped_tasks:
            raise DataError("every task was dropped: all prompts are longer than trainer.max_prompt_tokens allows")
        return self.counters

    def _close_tracker(self, status: str) -> None:
        """Ends the default tracker; one that was passed in is the caller's to close."""
        if self._closes_tracker:
            self.tracker.close(status)

    def evaluate(self, num_eval_samples: int | None = None) -> Metrics:
        """Metrics over the first `num_eval_samples` (default `eval_num_samples`) rows of the evaluation set."""
        return self.evaluator(self.args.eval_num_samples if num_eval_samples is None else num_eval_samples)

    def save_model(self, output_dir: str | Path) -> None:
        """Writes each agent to `output_dir/agent_i`, loadable by `from_pretrained`."""
        self.team.save(Path(output_dir))

    def _load_team(
        self, sources: Sequence[Source], formatters: Sequence[PromptFormatter], loading: Mapping[str, Any]
    ) -> Team:
        config = self.args
        parallel = config.parallel_training == "mp"
        devices = resolve_devices(config.agent_devices, len(sources), "agent_devices")
        references: Sequence[torch.device | None] = [None] * len(sources)
        if config.reference_kl_enabled:
            references = (
                devices
                if config.reference_devices is None
                else resolve_devices(config.reference_devices, len(sources), "reference_devices")
            )
        agents = []
        for index, source in enumerate(sources):
            model = source.model
            if isinstance(model, str):
                dtype = loading.get("dtype") or loading.get("torch_dtype")
                model = load_model(model, dtype, loading.get("attn_implementation"))
            if source.tokenizer is not None:
                seed = derive_seed(config.seed, "embeddings", index)
                fit_embeddings(model, source.tokenizer, loading.get("special_tokens"), seed, source.name)
            policy = make_policy(model, source.tokenizer, devices[index], config)
            agents.append(
                make_agent(index, policy, formatters[index], config, references[index], self._max_updates(len(sources)))
            )
        return Team(agents, parallel)

    def _max_updates(self, num_agents: int) -> int | None:
        if self.train_dataset is None or not isinstance(self.train_dataset, Sized):
            return None
        joint_mode = resolve_mode(self.args.joint_mode, JOINT_MODES)
        num_joint_actions = len(joint_mode.index(num_agents, self.args.num_generations))
        nodes = tree_counts(self.args, num_joint_actions).nodes
        return max_updates(self.args, nodes, len(self.train_dataset))


class MAREINFORCETrainer(MAGRPOTrainer):
    """Multi-agent REINFORCE without a baseline."""

    config_class = MAREINFORCEConfig
    algorithm = "MAREINFORCE"


class MARLOOTrainer(MAGRPOTrainer):
    """Multi-agent REINFORCE, leave-one-out: the mean of the other generations is the baseline."""

    config_class = MARLOOConfig
    algorithm = "MARLOO"


class MAReMaxTrainer(MAGRPOTrainer):
    """Multi-agent REINFORCE with the group maximum as baseline."""

    config_class = MAReMaxConfig
    algorithm = "MAReMax"


def resolve_mode(mode: Any, table: Mapping[str, Callable[[], Any]]) -> Any:
    """A mode given by name, from its table; a mode object as it is."""
    return table[mode]() if isinstance(mode, str) else mode


def reward_range(reward_func: Callable[..., Any]) -> tuple[float, float] | None:
    """The (least, greatest) value a reward declares as `reward_range`, or None."""
    inner = reward_func
    while "func" in dir(inner) and "reward_range" not in dir(inner):
        inner = inner.func  # type: ignore[attr-defined]
    if "reward_range" not in dir(inner):
        return None
    least, greatest = inner.reward_range  # type: ignore[attr-defined]
    return float(least), float(greatest)
