"""A role: the task's prompt inside a text of the agent's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from marl_runner.errors import ConfigError
from marl_runner.formatters.call import row_prompt


@dataclass(frozen=True)
class RoleFormatter:
    """Puts the prompt in place of `{prompt}`; other braces are left as they are.

    Attributes:
        template: Text with `{prompt}` in it.
    """

    template: str

    def __post_init__(self) -> None:
        if "{prompt}" not in self.template:
            raise ConfigError(f"agents.role_prompts: {self.template!r} has no {{prompt}} in it")

    def __call__(self, row: dict[str, Any]) -> str:
        """The text for one row."""
        return self.template.replace("{prompt}", row_prompt(row))
