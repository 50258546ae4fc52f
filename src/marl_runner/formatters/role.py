"""A role: the columns of a row inside a text of the agent's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from marl_runner.errors import ConfigError
from marl_runner.formatters.call import row_prompt

PLACE = re.compile(r"\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class RoleFormatter:
    """Puts columns of the row in place of `{prompt}`, `{entry_point}`, …; braces around no name are left as they are.

    Attributes:
        template: Text with at least one column's name in braces.
    """

    template: str

    def __post_init__(self) -> None:
        if not PLACE.search(self.template):
            raise ConfigError(f"agents.role_prompts: {self.template!r} has no {{prompt}} or other column in it")

    def __call__(self, row: dict[str, Any]) -> str:
        """The text for one row.

        Raises:
            KeyError: A name in braces is no column of the row.
        """
        return PLACE.sub(
            lambda place: row_prompt(row) if place[1] == "prompt" else self._column(row, place[1]), self.template
        )

    def _column(self, row: dict[str, Any], name: str) -> str:
        if name not in row:
            raise KeyError(
                f"agents.role_prompts: {{{name}}} is no column of the row, which has {', '.join(map(str, row))}"
            )
        return str(row[name])
