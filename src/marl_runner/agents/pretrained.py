"""A team of pretrained language models, from the hub or from folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_runner.agents.source import AgentSize, TeamSource
from marl_runner.errors import ConfigError
from marl_runner.setting_rules import check_choice

BYTES_PER_WEIGHT = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True)
class Pretrained:
    """One model for all agents, or one for each.

    Attributes:
        model: Hub id or folder of every agent; null when `models` is given.
        models: Hub id or folder of each agent; null for one shared `model`.
        num_agents: Team size, >= 1.
        dtype: Of the weights: float32, bfloat16 or float16. Small steps round to nothing below float32.
        attn_implementation: sdpa, eager, …; null leaves it to transformers.
        chat_template: Wrap prompts in the model's chat template.
        system_prompt: System message of the chat; null sends none of ours.
        role_prompts: Text for each agent with columns of the row in braces, `{prompt}` first of all; null sends the
            prompt as it is.
        special_tokens: Tokens to add, by role (`pad_token: "<pad>"`); the embeddings grow with
            them. null adds none.
    """

    model: str | None
    models: list[str] | None
    num_agents: int
    dtype: str
    attn_implementation: str | None
    chat_template: bool
    system_prompt: str | None
    role_prompts: list[str] | None
    special_tokens: dict[str, str] | None

    def __post_init__(self) -> None:
        if self.num_agents < 1:
            raise ConfigError(f"agents.num_agents must be >= 1, got {self.num_agents}")
        if (self.model is None) == (self.models is None):
            raise ConfigError("name the team by agents.model (one for all) or agents.models=[…] (one for each)")
        for name in ("models", "role_prompts"):
            values = vars(self)[name]
            if values is not None and len(values) != self.num_agents:
                raise ConfigError(f"agents.{name} has {len(values)} entries, but agents.num_agents={self.num_agents}")
        check_choice("agents.dtype", self.dtype, tuple(BYTES_PER_WEIGHT))
        if self.system_prompt is not None and not self.chat_template:
            raise ConfigError("agents.system_prompt needs agents.chat_template=true")

    def sources(self) -> list[str]:
        """Hub id or folder of each agent, `~` expanded."""
        named = self.models if self.models is not None else [str(self.model)] * self.num_agents
        return [str(Path(source).expanduser()) if source.startswith("~") else source for source in named]

    def __call__(self, seed: int) -> TeamSource:
        """Loads the tokenizers and makes the formatters; the weights are loaded by the trainer.

        Raises:
            ConfigError: A model is not there, or has no chat template.
        """
        from marl_runner.loading import load_tokenizer

        tokenizers = [load_tokenizer(source) for source in self.sources()]
        return TeamSource(
            agents=list(self.sources()),
            tokenizer=tokenizers,
            formatters=[self._formatter(agent, tokenizer) for agent, tokenizer in enumerate(tokenizers)],
            model_config={
                "dtype": self.dtype,
                "attn_implementation": self.attn_implementation,
                "special_tokens": self.special_tokens,
            },
        )

    def _formatter(self, agent: int, tokenizer: Any) -> Callable[..., str]:
        from marl_runner.formatters.call import row_prompt
        from marl_runner.formatters.chat import ChatFormatter
        from marl_runner.formatters.role import RoleFormatter

        inner = row_prompt if self.role_prompts is None else RoleFormatter(self.role_prompts[agent])
        return ChatFormatter(tokenizer, inner, self.system_prompt) if self.chat_template else inner

    def sizes(self) -> list[AgentSize]:
        """Parameters of each agent, from its configuration alone."""
        from marl_runner.loading import load_model_config
        from marl_runner.policies.model_config import model_size

        return [
            AgentSize(source, *model_size(load_model_config(source)), bytes_per_weight=BYTES_PER_WEIGHT[self.dtype])
            for source in self.sources()
        ]
