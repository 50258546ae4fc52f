"""What an agents option hands to the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TeamSource:
    """Trainer arguments that describe a team.

    Attributes:
        agents: One identifier or model per agent.
        tokenizer: One per agent.
        formatters: One per agent, or None to send prompts as they are.
        model_config: How identifiers are loaded.
    """

    agents: list[Any]
    tokenizer: list[Any]
    formatters: list[Callable[..., str]] | None = None
    model_config: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentSize:
    """One agent as `dry_run` shows it: a name, parameters, and bytes of one weight."""

    name: str
    num_parameters: int
    bytes_per_weight: int
