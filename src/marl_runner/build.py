"""From a composed configuration to a trainer: the only module that calls `hydra.utils.instantiate`.

`DictConfig` stops here; everything below takes plain Python values.
"""

from __future__ import annotations

from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig

from marl_runner.config import algorithm_name, settings
from marl_runner.errors import ConfigError, MarlRunnerError
from marl_runner.rewards.processors import RewardProcessor, RewardProcessors
from marl_runner.trainers.magrpo import (
    MAGRPOTrainer,
    MAREINFORCETrainer,
    MAReMaxTrainer,
    MARLOOTrainer,
)
from marl_runner.typed_options import INSTANTIATE_KEYS, option_target, typed_values
from marl_runner.types import Splits, Starts, Tracker

TRAINERS = {
    trainer.algorithm: trainer for trainer in (MAREINFORCETrainer, MAGRPOTrainer, MARLOOTrainer, MAReMaxTrainer)
}


def option(group: str, cfg: DictConfig) -> Any:
    """The object of one config group, made of values of their annotated types.

    Raises:
        ConfigError: A value is of another type, or the constructor refuses it.
    """
    node = cfg[group]
    values = typed_values(group, option_target(group, node), node)
    try:
        return instantiate({**{key: node[key] for key in INSTANTIATE_KEYS if key in node}, **values}, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, MarlRunnerError):
            raise error.__cause__ from error
        raise ConfigError(f"{group}._target_={node._target_} cannot be made: {error.__cause__ or error}") from error


def hooks(cfg: DictConfig) -> tuple[Any, Any]:
    """Reward and transition, ready to be called: processes of their own run before there are threads to fork from.

    Raises:
        ConfigError: One cannot be made, or does not start.
    """
    reward, transition = option("reward", cfg), option("transition", cfg)
    for hook in (reward, transition):
        if isinstance(hook, Starts):
            hook.start()
    return reward, transition


def build_processor(cfg: DictConfig) -> RewardProcessor:
    """reward * scale + shift."""
    scale = RewardProcessors.scale(cfg.reward_processor.scale)
    shift = RewardProcessors.shift(cfg.reward_processor.shift)
    return lambda reward: shift(scale(reward))


def build_trainer(cfg: DictConfig, tracker: Tracker) -> MAGRPOTrainer:
    """Builds everything a run needs; rows, hooks and prompts are checked before weights are loaded.

    Raises:
        ConfigError, DataError: Nothing was trained.
    """
    reward, transition = hooks(cfg)
    splits: Splits = option("dataset", cfg)()
    source = option("agents", cfg)(seed=cfg.seed)
    trainer = TRAINERS.get(algorithm_name(cfg), MAGRPOTrainer)
    return trainer(
        agents=source.agents,
        tokenizer=source.tokenizer,
        model_config=source.model_config,
        formatters=source.formatters,
        train_dataset=splits.train,
        eval_dataset=splits.eval,
        reward_func=reward,
        reward_processor=build_processor(cfg),
        external_transition=transition,
        args=settings(cfg),
        tracker=tracker,
    )
