"""The JSON file of an evaluation: what was evaluated, every estimate, and every reward it was computed from."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_runner.run_folder import versions
from marl_runner.team import weights_sha256
from marl_runner.team_evaluation.estimates import passed
from marl_runner.team_evaluation.interval import LEVEL, SEED
from marl_runner.team_evaluation.passing import PassRule
from marl_runner.team_evaluation.players import Player
from marl_runner.team_evaluation.request import EvalRequest
from marl_runner.team_evaluation.results import Estimate, PlayedTurn, TaskResult, TeamEvaluation
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Sampling


def as_json(
    request: EvalRequest,
    players: Sequence[Player],
    trainer: MAGRPOTrainer,
    sampling: Sampling,
    result: TeamEvaluation,
) -> dict[str, Any]:
    """Everything of an evaluation as plain values; other runs are named relative to the run folder."""
    return {
        "run": request.folder.resolve().name,
        "algorithm": trainer.algorithm,
        "seed": trainer.args.seed,
        "split": request.split,
        "overrides": list(request.overrides),
        "num_tasks": len(result.tasks),
        "num_samples": request.num_samples,
        "num_turns": trainer.args.num_turns,
        "discount": trainer.args.applied_discount,
        "greedy": request.greedy,
        "sampling": vars(sampling),
        "pass_rule": None if result.rule is None else str(result.rule),
        "agents": [player_json(player, request.folder) for player in players],
        "weights_sha256": {f"agent_{agent.index}": weights_sha256(agent.policy) for agent in trainer.team.agents},
        "interval": {"level": LEVEL, "method": "percentile bootstrap over tasks", "resamples": request.resamples}
        | {"seed": SEED},
        "counts": {
            "reward_calls": trainer.engine.reward.num_calls,
            "nonfinite_rewards": trainer.engine.reward.num_nonfinite,
            "dropped_prompts": trainer.engine.num_dropped_prompts,
            "truncated_prompts": trainer.engine.num_truncated_prompts,
        },
        "metrics": {name: estimate_json(estimate) for name, estimate in result.metrics.items()},
        "tasks": [task_json(task, result.rule, request.texts) for task in result.tasks],
        "versions": versions(),
    }


def player_json(player: Player, folder: Path) -> dict[str, Any]:
    """Who plays at one place."""
    run = None if player.run is None else os.path.relpath(player.run.resolve(), folder.resolve())
    return {"player": player.kind, "run": run, "agent": player.index}


def estimate_json(estimate: Estimate) -> dict[str, float | int | None]:
    """One metric."""
    low, high = (None, None) if estimate.interval is None else estimate.interval
    return {"mean": estimate.mean, "ci_low": low, "ci_high": high, "num_tasks": estimate.num_tasks}


def task_json(task: TaskResult, rule: PassRule | None, texts: bool) -> dict[str, Any]:
    """One task with all its samples."""
    samples = [
        {
            "passed": None if rule is None else passed(path, rule),
            "turns": [turn_json(turn, rule, texts) for turn in path],
        }
        for path in task.paths_S
    ]
    return {"uid": task.uid, "samples": samples}


def turn_json(turn: PlayedTurn, rule: PassRule | None, texts: bool) -> dict[str, Any]:
    """One turn of one sample."""
    said = {"prompts": list(turn.texts.prompts_N), "completions": list(turn.texts.actions_N)} if texts else {}
    return {
        "reward": turn.reward.value,
        "components": dict(turn.reward.components),
        "passed": None if rule is None else rule.holds(turn.reward),
        **said,
    }


def write(report: dict[str, Any], output: Path) -> None:
    """Writes the file, complete or not at all."""
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished = output.with_name(f"{output.name}.tmp")
    unfinished.write_text(text, encoding="ascii")
    unfinished.replace(output)
