"""From a saved configuration and its players to a trainer that can be evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from omegaconf import DictConfig

from marl_runner.agents.pretrained import Pretrained
from marl_runner.agents.source import TeamSource
from marl_runner.build import build_processor, hooks, option
from marl_runner.config import settings
from marl_runner.errors import DataError
from marl_runner.loading import load_model, load_tokenizer
from marl_runner.settings import MAGRPOConfig
from marl_runner.team_evaluation.players import Player
from marl_runner.team_evaluation.request import EvalRequest
from marl_runner.tracking.options import Trackers
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Splits, Task


def build_evaluation(
    cfg: DictConfig, request: EvalRequest, players: Sequence[Player]
) -> tuple[MAGRPOTrainer, list[Task]]:
    """The team with its reward and transition, as training makes them, and the tasks to play.

    Raises:
        ConfigError, DataError: Nothing was evaluated.
    """
    reward, transition = hooks(cfg)
    rows = split_rows(option("dataset", cfg)(), request)
    source = with_players(cfg, players)
    trainer = MAGRPOTrainer(
        agents=source.agents,
        tokenizer=source.tokenizer,
        model_config=source.model_config,
        formatters=source.formatters,
        train_dataset=rows if request.split == "train" else None,
        eval_dataset=rows if request.split == "eval" else None,
        reward_func=reward,
        reward_processor=build_processor(cfg),
        external_transition=transition,
        args=eval_settings(cfg, request.seed),
        tracker=Trackers([]),
    )
    tasks = trainer.eval_tasks if trainer.train_tasks is None else trainer.train_tasks
    return trainer, list(tasks)


def split_rows(splits: Splits, request: EvalRequest) -> list[dict[str, Any]]:
    """The first rows of the split that is asked for.

    Raises:
        DataError: It has none.
    """
    rows = splits.train if request.split == "train" else splits.eval
    if not rows:
        raise DataError(
            f"the {request.split} split has no rows: set dataset.eval_fraction or the dataset's own evaluation rows, "
            "or evaluate on --split train"
        )
    return list(islice(rows, request.num_tasks))


def eval_settings(cfg: DictConfig, seed: int | None) -> MAGRPOConfig:
    """The run's settings without what only training needs: the frozen references and a schedule that ends."""
    config = settings(cfg)
    return replace(
        config,
        seed=config.seed if seed is None else seed,
        reference_kl_enabled=False,
        lr_scheduler="constant",
        early_termination_threshold=None,
    )


def with_players(cfg: DictConfig, players: Sequence[Player]) -> TeamSource:
    """The run's team with each player's weights and tokenizer, under the role of the place it plays at.

    Saved weights are loaded in the precision they were saved in, untrained ones in that of the configuration.
    """
    agents = option("agents", cfg)
    folders = [None if player.weights is None else str(player.weights.resolve()) for player in players]
    if isinstance(agents, Pretrained):
        # The formatters are then made with the players' chat templates.
        models = [folder or own for folder, own in zip(folders, agents.sources(), strict=True)]
        source: TeamSource = replace(agents, model=None, models=models)(seed=cfg.seed)
    else:
        source = agents(seed=cfg.seed)
    places = list(zip(folders, source.agents, source.tokenizer, strict=True))
    return replace(
        source,
        agents=[untrained(own, source.model_config) if folder is None else folder for folder, own, _ in places],
        tokenizer=[own if folder is None else load_tokenizer(folder) for folder, _, own in places],
        model_config={**source.model_config, "dtype": "auto"},
    )


def untrained(agent: Any, model_config: dict[str, Any]) -> Any:
    """The model that a configuration names, loaded as training loads it; one that was made already as it is."""
    if not isinstance(agent, str):
        return agent
    return load_model(agent, model_config.get("dtype"), model_config.get("attn_implementation"))
