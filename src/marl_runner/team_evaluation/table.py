"""An evaluation on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from marl_runner.team_evaluation.players import Player
from marl_runner.team_evaluation.request import EvalRequest
from marl_runner.team_evaluation.results import Estimate, TeamEvaluation

NO_PASSES = "no pass@k: the reward has no component 'tests'; say what passes with --pass 'NAME>=VALUE'"


def print_table(request: EvalRequest, players: Sequence[Player], result: TeamEvaluation, console: Console) -> None:
    """Prints every estimate with its interval, and what they are of.

    Everything printed is a `rich.text.Text`: rich reads `[bold]` in plain strings as markup.
    """
    drawn = "greedy" if request.greedy else f"{request.num_samples} samples each"
    title = f"{request.folder.resolve().name}: {request.split} split, {len(result.tasks)} tasks, {drawn}"
    table = Table("metric", title=Text(title))
    for heading in ("mean", "95 % interval", "tasks"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, estimate in result.metrics.items():
        table.add_row(Text(name), f"{estimate.mean:.3f}", interval_text(estimate), str(estimate.num_tasks))
    console.print(table)
    for place, player in enumerate(players):
        console.print(Text(f"agent {place}: {player_text(player)}"), soft_wrap=True)
    passes = NO_PASSES if result.rule is None else f"a path passes if {result.rule} at its last turn"
    console.print(Text(passes), soft_wrap=True)


def interval_text(estimate: Estimate) -> str:
    """The bounds, or a dash where one task has none."""
    return "-" if estimate.interval is None else f"{estimate.interval[0]:.3f} to {estimate.interval[1]:.3f}"


def player_text(player: Player) -> str:
    """Who plays, in words."""
    if player.kind == "swapped":
        return f"agent {player.index} of {player.run}"
    return player.kind
