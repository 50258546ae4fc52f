"""One run in its folder: build, train, save, and a summary whatever happens."""

from __future__ import annotations

import logging
import shlex
import sys
import traceback
from pathlib import Path
from statistics import mean
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from transformers.utils.logging import disable_progress_bar

from marl_runner.allocator import tune_allocator
from marl_runner.build import build_trainer, option
from marl_runner.config import algorithm_name
from marl_runner.metrics import reward_name
from marl_runner.reporter import Counters
from marl_runner.run_folder import RunFolder
from marl_runner.stopping import Stopped
from marl_runner.team import weights_sha256
from marl_runner.tracking.options import Trackers
from marl_runner.trainers.magrpo import MAGRPOTrainer

log = logging.getLogger(__name__)

LOG = "train.log"
"""The log file that Hydra keeps in the run folder."""


def run(cfg: DictConfig, path: Path) -> float | None:
    """Trains in the folder `path` and returns the objective.

    Raises:
        RunFolderError: The folder is taken.
        MarlRunnerError: What ended the run; summary.json says so too.
    """
    if not sys.stderr.isatty():
        disable_progress_bar()
    with RunFolder(path) as folder:
        tracker = Trackers([])
        trainer: MAGRPOTrainer | None = None
        try:
            OmegaConf.save(cfg, path / "config.yaml", resolve=True)
            plain = OmegaConf.to_container(cfg, resolve=True)
            tracker = Trackers(option("tracking", cfg)(path, plain, group=sweep_name()))
            tune_allocator()
            trainer = build_trainer(cfg, tracker)
            log.info("training %s in %s", trainer.algorithm, path)
            trainer.train()
            if cfg.save_models:
                trainer.save_model(path / "models")
            weights = {f"agent_{agent.index}": weights_sha256(agent.policy) for agent in trainer.team.agents}
            folder.write_summary("completed", None, {**facts(cfg, trainer), "weights_sha256": weights})
        except BaseException as error:
            status = "preempted" if isinstance(error, (Stopped, KeyboardInterrupt)) else "failed"
            folder.write_summary(status, error, facts(cfg, trainer))
            tracker.close(status)
            with (path / LOG).open("a") as file:
                # The console gets one sentence; the log keeps the way to the line that failed.
                traceback.print_exception(error, file=file)
            raise
        tracker.close("completed")
        return objective(trainer.counters, trainer.args.num_turns)


def sweep_name() -> str | None:
    """Name shared by the jobs of a sweep: its folder's; None for a single run."""
    hydra = HydraConfig.get()
    return Path(hydra.sweep.dir).name if hydra.mode == RunMode.MULTIRUN else None


def objective(counters: Counters, num_turns: int) -> float | None:
    """The last turn's mean reward of the final evaluation, else the mean training reward of the last tenth."""
    evaluated = counters.evaluation.get(f"eval/{reward_name(num_turns - 1)}")
    if evaluated is not None:
        return evaluated
    rewards = counters.task_rewards
    return mean(rewards[-max(1, len(rewards) // 10) :]) if rewards else None


def command_line() -> str:
    """What to type for this configuration again: for a job of a sweep, a run of that job alone."""
    hydra = HydraConfig.get()
    if hydra.mode != RunMode.MULTIRUN:
        return shlex.join(["marl-train", *sys.argv[1:]])
    folders = [source.path for source in hydra.runtime.config_sources if source.provider == "command-line"]
    flags = [f"--config-dir={folder}" for folder in folders]
    return shlex.join(["marl-train", *flags, *hydra.overrides.task])


def facts(cfg: DictConfig, trainer: MAGRPOTrainer | None) -> dict[str, Any]:
    """What summary.json holds of every run; without a trainer, nothing was built yet and all counts are 0."""
    counters = Counters() if trainer is None else trainer.counters
    reward = None if trainer is None else trainer.engine.reward
    return {
        "command": command_line(),
        "objective": objective(counters, cfg.trainer.num_turns),
        "algorithm": algorithm_name(cfg),
        "counts": {
            "tasks": counters.tasks,
            "dropped_tasks": counters.dropped_tasks,
            "env_steps": counters.env_step,
            "updates": counters.updates,
            "generated_tokens": counters.generated_tokens,
            "reward_calls": 0 if reward is None else reward.num_calls,
            "nonfinite_rewards": 0 if reward is None else reward.num_nonfinite,
            "abstained_groups": counters.abstained_groups,
            "dropped_prompts": 0 if trainer is None else trainer.engine.num_dropped_prompts,
            "truncated_prompts": 0 if trainer is None else trainer.engine.num_truncated_prompts,
            **({} if trainer is None else trainer.engine.hook_counts()),
        },
    }
