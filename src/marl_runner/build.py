"""From a composed configuration to a trainer: the only module that calls `hydra.utils.instantiate`.

`DictConfig` stops here; everything below takes plain Python values.
"""

from __future__ import annotations

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from marl_runner.config import algorithm_name, settings
from marl_runner.datasets.fields import require_fields
from marl_runner.errors import ConfigError, MarlRunnerError
from marl_runner.hooks import hook_name
from marl_runner.rewards.processors import RewardProcessor, RewardProcessors
from marl_runner.trainers.magrpo import (
    MAGRPOTrainer,
    MAREINFORCETrainer,
    MAReMaxTrainer,
    MARLOOTrainer,
)
from marl_runner.types import Splits, Tracker

TRAINERS: dict[str, type[MAGRPOTrainer]] = {
    "raw": MAREINFORCETrainer,
    "mean": MAGRPOTrainer,
    "rloo": MARLOOTrainer,
    "max": MAReMaxTrainer,
}


def option(node: DictConfig) -> Any:
    """The object of one config group.

    Raises:
        ConfigError: Its constructor refused a value.
    """
    try:
        return instantiate(node, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, MarlRunnerError):
            raise error.__cause__ from error
        raise ConfigError(f"{node._target_} cannot be made: {error.__cause__ or error}") from error


def build_processor(cfg: DictConfig) -> RewardProcessor:
    """reward * scale + shift."""
    scale = RewardProcessors.scale(cfg.reward_processor.scale)
    shift = RewardProcessors.shift(cfg.reward_processor.shift)
    return lambda reward: shift(scale(reward))


def build_dataset(cfg: DictConfig, reward: Any) -> Splits:
    """Loads the rows, and checks that they have the columns the reward declares as `required_fields`.

    Raises:
        DataError: Naming the file, row or column.
    """
    splits: Splits = option(cfg.dataset)()
    if "required_fields" in dir(reward):
        why = f"needed by reward {hook_name(reward)}"
        for name, rows in (("training rows", splits.train), ("evaluation rows", splits.eval)):
            require_fields(rows, reward.required_fields, source=name, why=why)
    return splits


def build_trainer(cfg: DictConfig, tracker: Tracker) -> MAGRPOTrainer:
    """Builds everything a run needs; rows, hooks and prompts are checked before weights are loaded.

    Raises:
        ConfigError, DataError: Nothing was trained.
    """
    reward = option(cfg.reward)
    splits = build_dataset(cfg, reward)
    source = option(cfg.agents)(seed=cfg.seed)
    trainer = TRAINERS[algorithm_name(cfg)]
    return trainer(
        agents=source.agents,
        tokenizer=source.tokenizer,
        model_config=source.model_config,
        formatters=source.formatters,
        train_dataset=splits.train,
        eval_dataset=splits.eval,
        reward_func=reward,
        reward_processor=build_processor(cfg),
        external_transition=option(cfg.transition),
        args=settings(cfg),
        tracker=tracker,
    )
