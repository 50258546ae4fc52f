"""`MAGRPOTrainer` and its three variants, under the reference implementation's names and meanings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from marl_runner.errors import ConfigError, DataError
from marl_runner.evaluate import EvalAggregator, EvalLogger, Evaluator
from marl_runner.formatters.call import per_agent
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.loop import TrainingLoop
from marl_runner.old_names import TRAINER_NAMES, takes_old_names
from marl_runner.reporter import Counters
from marl_runner.rollout import RolloutEngine
from marl_runner.settings import (
    MAGRPOConfig,
    MAREINFORCEConfig,
    MAReMaxConfig,
    MARLOOConfig,
)
from marl_runner.tasks import RepeatedTasks
from marl_runner.trainers.assembly import (
    count_updates,
    credit_rules,
    default_tracker,
    load_team,
    new_run_folder,
    resolve_mode,
)
from marl_runner.trainers.checks import (
    algorithm_of,
    check_args,
    check_callbacks,
    check_fields,
    check_first_prompts,
    check_hooks,
)
from marl_runner.trainers.sources import (
    check_model_config,
    resolve_models,
    resolve_sources,
    team_size,
)
from marl_runner.types import Metrics, Tracker


class MAGRPOTrainer:
    """Trains a team with multi-agent REINFORCE; the group mean is the baseline.

    Args:
        agent_model: Model identifier of N homogeneous agents; beside preloaded `agents` only a label.
        agents: One model identifier, transformers model or Policy per agent. Agents that are the same object share
            their weights: one optimiser, and their gradients are added.
        num_agents: Team size; from `agents` or `args` if not given, else 2.
        tokenizer: One shared or one per agent; optional for identifiers.
        model_config: `dtype`, `attn_implementation`, `special_tokens` for loading; also inside `model_kwargs`.
        train_dataset: Rows to train on, needed by `train()`: a list of dicts, any iterable of rows that can be read
            again, or a map-style torch dataset.
        eval_dataset: Rows to evaluate on.
        reward_func: `reward(*completions_per_agent)` → one number per joint action; required. Called once per
            joint action with lists of one text; receives `prompts`, `batch_items` and `batch_item` if it names them.
        reward_processor: Applied to every reward.
        formatters: One callable or one per agent, from a row to the text sent.
        external_transition: Makes the next turn's prompts; required when `num_turns` > 1.
        wandb_config: `project`, `entity`, `name` (or `run_name`), `group`, `tags`, `mode`, `dir`,
            `config_sections`; None starts no W&B run.
        eval_logger: Per-task metrics of an evaluation; works only with `eval_aggregator`.
        eval_aggregator: From those to logged metrics.
        args: The settings; default `config_class()` of the team's size.
        tracker: Told what happens; default writes `metrics.jsonl` and `rollouts.jsonl` into `output_dir`.
        output_dir: Folder of the default tracker; default `outputs/<algorithm>-<time>`.
        model, reward_funcs, dataset_type: Older CoMLRL names, taken with a DeprecationWarning.

    Raises:
        ConfigError: Arguments that are missing, contradict each other or do not fit.
        DataError: A row that cannot be formatted, or whose prompt is too long.
    """

    config_class: ClassVar[type[MAGRPOConfig]] = MAGRPOConfig
    algorithm: str = "MAGRPO"

    @takes_old_names(TRAINER_NAMES)
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
        given = check_args(args, self.config_class)
        size = team_size(agents, num_agents, given.stated_num_agents)
        self.args = given.for_team(size)
        self.algorithm = algorithm_of(type(self), self.args)
        hooks = check_hooks(self.args, size, reward_func, reward_processor, external_transition)
        check_callbacks(eval_logger, eval_aggregator)
        self._closes_tracker = tracker is None
        folder = new_run_folder(given.output_dir, self.algorithm) if output_dir is None else Path(output_dir)
        self.tracker = default_tracker(folder, self.args, wandb_config) if tracker is None else tracker

        loading = check_model_config(model_config)
        sources = resolve_sources(resolve_models(agent_model, agents, size), tokenizer, loading.get("special_tokens"))
        prompt_formatters = per_agent(formatters, size, self.args.external_prompt_passthrough)
        self.train_tasks = None if train_dataset is None else RepeatedTasks(train_dataset, "train_dataset")
        self.eval_tasks = RepeatedTasks(() if eval_dataset is None else eval_dataset, "eval_dataset", name="eval-")
        known_tasks = [*(() if self.train_tasks is None else self.train_tasks.known()), *self.eval_tasks.known()]
        check_fields(known_tasks, reward_func)
        check_first_prompts(known_tasks, sources, prompt_formatters, self.args)

        joint_mode = resolve_mode(self.args.joint_mode, JOINT_MODES)
        num_updates = count_updates(self.args, joint_mode, self.train_tasks)
        self.team = load_team(sources, prompt_formatters, loading, self.args, num_updates)
        self.rules = credit_rules(self.args, joint_mode)
        self.engine = RolloutEngine(self.team, *hooks, joint_mode, self.args)
        self.evaluator = Evaluator(self.engine, self.eval_tasks, eval_logger, eval_aggregator, self.args)
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
        if self.train_tasks is None:
            raise ConfigError("train() needs a train_dataset")
        if self.counters.tasks:
            raise ConfigError("train() was called before: make a new trainer, whose events start over")
        if self.train_tasks.length == 0:
            raise DataError("train_dataset has no rows")
        loop = TrainingLoop(self.team, self.engine, self.evaluator, self.rules, self.tracker, self.args)
        self.counters = loop.counters
        try:
            loop.run(self.train_tasks, self.train_tasks.length)
            if self.counters.tasks == self.counters.dropped_tasks:
                raise DataError("no task could be used: train_dataset is empty, or all prompts are overlong")
        except BaseException as error:
            self._close_tracker("failed" if isinstance(error, Exception) else "preempted")
            raise
        self._close_tracker("completed")
        return self.counters

    def _close_tracker(self, status: str) -> None:
        """Ends the default tracker; one that was passed in is the caller's to close."""
        if self._closes_tracker:
            self.tracker.close(status)

    def evaluate(self, num_eval_samples: int | None = None) -> Metrics:
        """Metrics over the first `num_eval_samples` (default `eval_num_samples`) rows of the evaluation set.

        Raises:
            ConfigError: The number is not an integer >= 0.
        """
        number = self.args.eval_num_samples if num_eval_samples is None else num_eval_samples
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ConfigError(f"num_eval_samples must be an integer >= 0, got {number!r}")
        return self.evaluator(number)

    def save_model(self, output_dir: str | Path) -> None:
        """Writes each agent to `output_dir/agent_i`, loadable by `from_pretrained`."""
        self.team.save(Path(output_dir))


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
