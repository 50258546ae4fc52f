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
    """One agent as `dry_run` shows it.

    Attributes:
        name: Hub id, folder or "tiny".
        num_parameters: Weights of the model.
        vocabulary: Rows of its embedding table.
        cache_values_per_token: Numbers that one sampled token keeps in the key-value cache.
        bytes_per_weight: 4 for float32, 2 for bfloat16 and float16.
    """

    name: str
    num_parameters: int
    vocabulary: int
    cache_values_per_token: int
    bytes_per_weight: int
