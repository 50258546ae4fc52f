"""Plays a team along several paths of each task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain

from marl_runner.errors import ConfigError
from marl_runner.evaluate import EvaluationPath, play
from marl_runner.team_evaluation.estimates import estimates
from marl_runner.team_evaluation.passing import DEFAULT_RULE, WHOLE_REWARD, PassRule
from marl_runner.team_evaluation.request import check_ks
from marl_runner.team_evaluation.results import PlayedTurn, TaskResult, TeamEvaluation
from marl_runner.trainers.magrpo import MAGRPOTrainer
from marl_runner.types import Reward, Sampling, Task

FIRST_PLACE = 0
"""Opens the name of a path's random stream, which so has one number more than any of training's own evaluations."""


def evaluate_team(
    trainer: MAGRPOTrainer,
    tasks: Iterable[Task],
    num_samples: int,
    *,
    sampling: Sampling | None = None,
    batch_size: int | None = None,
    rule: PassRule | None = None,
    ks: Sequence[int] | None = None,
    resamples: int = 10_000,
    on_played: Callable[[int], object] = lambda num_paths: None,
) -> TeamEvaluation:
    """Plays every task `num_samples` times and returns each path with what they come to.

    One completion per agent per turn, by the trainer's reward, transition and formatters; early termination plays no
    part. What is drawn depends on seed, agent, place of the task, sample and turn alone, not on the batches.

    Args:
        trainer: Holds the team; it is not trained.
        tasks: At least one, such as `trainer.eval_tasks`.
        num_samples: n, paths of each task, >= 1.
        sampling: How completions are drawn; None is as in training, `greedy(…)` the likeliest tokens.
        batch_size: Paths played together, >= 1; None, and at most, is `max_rollout_rows`.
        rule: Which paths pass; None is `tests>=1`, where the reward has that component.
        ks: Each k of pass@k, <= n; None is pass@1, where the rule applies.
        resamples: Bootstrap resamples of each interval, >= 100.
        on_played: Told how many paths were played, after each batch.

    Raises:
        ConfigError: A number is out of its range, there are no tasks, or the reward has not the part that `rule` or
            `ks` needs.
        MarlRunnerError: A reward, transition or model failed, naming where.
    """
    check_numbers(num_samples, batch_size, ks, resamples)
    listed = list(tasks)
    if not listed:
        raise ConfigError("there are no tasks to evaluate")
    config = trainer.args
    paths = paths_of(listed, num_samples, config.num_turns)
    size = min(batch_size or config.max_rollout_rows, config.max_rollout_rows)
    drawn = trainer.engine.sampling if sampling is None else sampling
    compared, is_required, applies = rule or DEFAULT_RULE, rule is not None or ks is not None, False
    for start in range(0, len(paths), size):
        batch = paths[start : start + size]
        play(trainer.engine, batch, drawn)
        applies = applies or rule_applies(compared, [path.rewards_H for path in batch], is_required)
        on_played(len(batch))
    results = [
        TaskResult(task.uid, tuple(played(path) for path in paths[i * num_samples : (i + 1) * num_samples]))
        for i, task in enumerate(listed)
    ]
    used = compared if applies or is_required else None
    metrics = estimates(results, config.num_turns, config.applied_discount, used, ks or (1,), resamples)
    return TeamEvaluation(tuple(results), metrics, used)


def paths_of(tasks: Sequence[Task], num_samples: int, num_turns: int) -> list[EvaluationPath]:
    """Every sample of every task, not yet played, the samples of a task together."""
    return [
        EvaluationPath(task, (FIRST_PLACE, i, s), f"evaluation task {task.uid}, sample {s + 1}", num_turns)
        for i, task in enumerate(tasks)
        for s in range(num_samples)
    ]


def check_numbers(num_samples: int, batch_size: int | None, ks: Sequence[int] | None, resamples: int) -> None:
    """Raises ConfigError if a number is out of its range."""
    for name, value, least in (
        ("num_samples", num_samples, 1),
        ("batch_size", 1 if batch_size is None else batch_size, 1),
        ("resamples", resamples, 100),
    ):
        if value < least:
            raise ConfigError(f"{name} must be >= {least}, got {value}")
    check_ks(ks or (), num_samples)


def greedy(sampling: Sampling) -> Sampling:
    """The likeliest token every time; among tokens that tie exactly one is still drawn."""
    return replace(sampling, temperature=1.0, top_p=1.0, top_k=1)


def played(path: EvaluationPath) -> tuple[PlayedTurn, ...]:
    """The turns that a path played."""
    return tuple(
        PlayedTurn(texts, reward)
        for texts, reward in zip(path.history, path.rewards_H[: len(path.history)], strict=True)
    )


def rule_applies(rule: PassRule, rewards_S_H: Sequence[Sequence[Reward]], is_required: bool) -> bool:
    """Whether any of these rewards has the part that a rule compares.

    Raises:
        ConfigError: None of those that did not abstain has it, and the user relies on it.
    """
    scored = [reward for reward in chain.from_iterable(rewards_S_H) if reward.value is not None]
    if any(rule.value(reward) is not None for reward in scored):
        return True
    if scored and is_required:
        names = sorted({name for reward in scored for name in reward.components})
        has = f"it has {', '.join(names)}" if names else "it has none"
        other = names[0] if names else WHOLE_REWARD
        raise ConfigError(
            f"pass@k by {rule} needs a reward with the component {rule.name!r}, and {has}: "
            f"choose what passes with --pass '{other}>=VALUE'"
        )
    return False
