"""Who plays in an evaluated team: its own agents, agents of other runs, and untrained ones. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_runner.errors import ConfigError
from marl_runner.team_evaluation.request import Swap
from marl_runner.team_evaluation.saved_run import saved_yaml


@dataclass(frozen=True)
class Player:
    """Who plays one agent's part.

    Attributes:
        kind: "trained" (the run's own agent), "swapped" (another run's) or "untrained".
        weights: Folder with its model and tokenizer; None for the model that the configuration names.
        run: The other run's folder, for a swapped one.
        index: Which agent of that run, or its own place.
    """

    kind: str
    weights: Path | None
    run: Path | None
    index: int


def lineup(folder: Path, num_agents: int, swaps: Sequence[Swap], bases: Sequence[int]) -> list[Player]:
    """One player for each place of the team.

    Raises:
        ConfigError: There is no such place, no such agent in the other run, or it has no saved weights.
    """
    for flag, agents in (("--swap", [swap.agent for swap in swaps]), ("--base", list(bases))):
        for agent in agents:
            if agent >= num_agents:
                raise ConfigError(f"{flag} {agent}: the team has {num_agents} agents, 0 to {num_agents - 1}")
    players = {agent: Player("untrained", None, None, agent) for agent in bases}
    players |= {swap.agent: swapped(swap) for swap in swaps}
    return [players.get(i) or Player("trained", weights_folder(folder, i), None, i) for i in range(num_agents)]


def swapped(swap: Swap) -> Player:
    """The agent of another run that a swap names.

    Raises:
        ConfigError: It is not there.
    """
    num_agents = int(saved_yaml(swap.run).agents.num_agents)
    if swap.index >= num_agents:
        raise ConfigError(
            f"--swap {swap.agent}={swap.run}: that run has {num_agents} agents, and no agent {swap.index}; name one of "
            f"them as --swap {swap.agent}={swap.run}:0"
        )
    return Player("swapped", weights_folder(swap.run, swap.index), swap.run, swap.index)


def weights_folder(folder: Path, agent: int) -> Path:
    """The one place that says where a run keeps the model and tokenizer of an agent.

    Raises:
        ConfigError: It has none.
    """
    weights = folder / "models" / f"agent_{agent}"
    if not (weights / "config.json").is_file():
        raise ConfigError(
            f"{folder} has no models/agent_{agent}: the run did not end, or had save_models=false; train it with "
            f"save_models=true, or put the untrained model in its place with --base {agent}"
        )
    return weights
