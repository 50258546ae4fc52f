"""The default team: small random language models with a character tokenizer, made from the seed."""

from __future__ import annotations

from dataclasses import dataclass

from marl_runner.agents.source import AgentSize, TeamSource
from marl_runner.errors import ConfigError
from marl_runner.streams import derive_seed


@dataclass(frozen=True)
class Tiny:
    """Every agent is a Llama of its own random weights; nothing is downloaded.

    Attributes:
        num_agents: Team size, >= 1.
        hidden_size: Width, a multiple of num_heads.
        num_layers: Depth, >= 1.
        num_heads: Attention heads, >= 1.
        context_length: Most tokens of prompt and completion together.
    """

    num_agents: int
    hidden_size: int
    num_layers: int
    num_heads: int
    context_length: int

    def __post_init__(self) -> None:
        for name in ("num_agents", "hidden_size", "num_layers", "num_heads", "context_length"):
            if vars(self)[name] < 1:
                raise ConfigError(f"agents.{name} must be >= 1, got {vars(self)[name]}")
        if self.hidden_size % (2 * self.num_heads):
            raise ConfigError(
                f"agents.hidden_size={self.hidden_size} must be a multiple of 2 * agents.num_heads={2 * self.num_heads}"
            )

    def __call__(self, seed: int) -> TeamSource:
        """Makes the models; torch then computes with one thread.

        These models are too small to share among threads: one is faster, and gives the same numbers on any machine.
        """
        import torch

        from marl_runner.policies.tiny import character_tokenizer, tiny_model

        torch.set_num_threads(1)
        models = [
            tiny_model(
                derive_seed(seed, "weights", agent),
                self.hidden_size,
                self.num_layers,
                self.num_heads,
                self.context_length,
            )
            for agent in range(self.num_agents)
        ]
        return TeamSource(agents=models, tokenizer=[character_tokenizer() for _ in models])

    def sizes(self) -> list[AgentSize]:
        """Parameters of each agent, without making it."""
        from marl_runner.policies.model_config import model_size
        from marl_runner.policies.tiny import tiny_config

        config = tiny_config(self.hidden_size, self.num_layers, self.num_heads, self.context_length)
        return [AgentSize("tiny", *model_size(config), bytes_per_weight=4)] * self.num_agents
