"""A role: the columns of a row inside a text of the agent's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from marl_runner.errors import ConfigError, DataError
from marl_runner.formatters.call import row_prompt

PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True)
class RoleFormatter:
    """Puts columns of the row in place of `{prompt}`, `{entry_point}`, …

    `{{name}}` is the text `{name}`; braces around anything but a name are left as they are.

    Attributes:
        template: Text with at least one column's name in braces.
    """

    template: str

    def __post_init__(self) -> None:
        if not any(column for _, column in PLACE.findall(self.template)):
            raise ConfigError(f"agents.role_prompts: {self.template!r} has no {{prompt}} or other column in it")

    def __call__(self, row: dict[str, Any]) -> str:
        """The text for one row.

        Raises:
            DataError: A name in braces is no column of the row, or the row has nothing there.
        """

        def filled(place: re.Match[str]) -> str:
            literal, column = place.groups()
            return f"{{{literal}}}" if literal else text_of(row, column)

        return PLACE.sub(filled, self.template)


def text_of(row: dict[str, Any], column: str) -> str:
    """What a row has in a column, as text.

    Raises:
        DataError: There is no such column, or nothing in it.
    """
    if column == "prompt":
        return row_prompt(row)
    if row.get(column) is None:
        raise DataError(
            f"agents.role_prompts: the row has no {column!r} but {', '.join(map(str, row))}; "
            f"write {{{{{column}}}}} for the braces themselves"
        )
    return str(row[column])
