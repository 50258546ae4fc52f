"""One `marl-eval` command after its gates: build, play, write, show."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from marl_runner.allocator import tune_allocator
from marl_runner.team_evaluation.building import build_evaluation
from marl_runner.team_evaluation.play import evaluate_team, greedy
from marl_runner.team_evaluation.players import Player
from marl_runner.team_evaluation.report import as_json, write
from marl_runner.team_evaluation.request import EvalRequest
from marl_runner.team_evaluation.table import print_table


def evaluate(request: EvalRequest, cfg: DictConfig, players: Sequence[Player]) -> None:
    """Evaluates, writes the JSON file and prints the table.

    Raises:
        MarlRunnerError: What ended it; nothing was written.
    """
    if not sys.stderr.isatty():
        disable_progress_bar()
    tune_allocator()
    trainer, tasks = build_evaluation(cfg, request, players)
    sampling = greedy(trainer.engine.sampling) if request.greedy else trainer.engine.sampling
    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        played = progress.add_task("evaluating", total=len(tasks) * request.num_samples)
        result = evaluate_team(
            trainer,
            tasks,
            request.num_samples,
            sampling=sampling,
            batch_size=request.batch_size,
            rule=request.rule,
            ks=request.ks,
            resamples=request.resamples,
            on_played=lambda num_paths: progress.advance(played, num_paths),
        )
    write(as_json(request, players, trainer, sampling, result), request.output)
    console = Console(highlight=False)
    print_table(request, players, result, console)
    console.print(Text(f"written to {request.output}"), soft_wrap=True)
