"""What a `marl-eval` command asks for. Never imports torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from marl_runner.errors import ConfigError
from marl_runner.team_evaluation.passing import PassRule


@dataclass(frozen=True)
class Swap:
    """One agent of another run in a place of this team.

    Attributes:
        agent: The place, from 0.
        run: The other run's folder.
        index: Which of its agents, from 0.
    """

    agent: int
    run: Path
    index: int


@dataclass(frozen=True)
class EvalRequest:
    """One evaluation.

    Attributes:
        folder: The run folder.
        overrides: `KEY=VALUE` changes to the run's configuration.
        split: "eval" or "train".
        num_tasks: Most tasks, the first of the split, >= 1; None takes all.
        num_samples: n, paths of each task, >= 1.
        ks: Each k of pass@k, <= n; None is pass@1, where the reward tells what passes.
        greedy: Always the likeliest token, instead of drawing by the run's temperature, top_p and top_k.
        seed: Of the evaluation's random streams, >= 0; None is the run's.
        batch_size: Paths played together, >= 1; None is `trainer.max_rollout_rows`, which bounds it too.
        rule: Which paths pass; None is the default rule, where the reward has its component.
        resamples: Bootstrap resamples of an interval, >= 100.
        swaps: Agents of other runs.
        bases: Agents replaced by their untrained models.
        output: The JSON file to write.
        texts: Whether prompts and completions go into the file.

    Raises:
        ConfigError: Two of them contradict each other.
    """

    folder: Path
    overrides: tuple[str, ...]
    split: str
    num_tasks: int | None
    num_samples: int
    ks: tuple[int, ...] | None
    greedy: bool
    seed: int | None
    batch_size: int | None
    rule: PassRule | None
    resamples: int
    swaps: tuple[Swap, ...]
    bases: tuple[int, ...]
    output: Path
    texts: bool

    def __post_init__(self) -> None:
        check_ks(self.ks or (), self.num_samples)
        if self.greedy and self.num_samples > 1:
            raise ConfigError(f"--greedy gives one answer only: --samples must be 1, got {self.num_samples}")
        swapped = [swap.agent for swap in self.swaps]
        for flag, agents in (("--swap", swapped), ("--base", list(self.bases))):
            for agent in agents:
                if agents.count(agent) > 1:
                    raise ConfigError(f"{flag} names agent {agent} more than once")
        for agent in swapped:
            if agent in self.bases:
                raise ConfigError(f"agent {agent} has both --swap and --base: keep one")


def check_ks(ks: Sequence[int], num_samples: int) -> None:
    """Raises ConfigError unless every k of pass@k is in [1, num_samples]."""
    for k in ks:
        if k < 1:
            raise ConfigError(f"pass@k needs k >= 1, got {k}")
        if k > num_samples:
            raise ConfigError(f"pass@{k} needs at least {k} samples of each task, got {num_samples}: set --samples {k}")


def default_output(folder: Path, split: str) -> Path:
    """`eval/<split>-<UTC time>.json` in the run folder, to the microsecond."""
    return folder / "eval" / f"{split}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}.json"


def check_output(output: Path) -> None:
    """Raises ConfigError if something is where the file is to go, or nothing can be written there."""
    if output.exists():
        raise ConfigError(f"{output} is there already: name another file with --output, or remove it")
    parent = next(folder for folder in output.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ConfigError(f"{output} cannot be written: {parent} is no folder that may be written to; use --output")
