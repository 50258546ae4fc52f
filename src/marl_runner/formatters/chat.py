"""The model's chat template around an agent's text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from marl_runner.errors import ConfigError, DataError


@dataclass(frozen=True)
class ChatFormatter:
    """Renders one user message, opened by a system message if there is one, ready for the answer.

    Attributes:
        tokenizer: Has the chat template.
        inner: Makes the user's message from a row.
        system_prompt: The system message; None sends none of ours (a template may have its own).
    """

    tokenizer: Any
    inner: Callable[[dict[str, Any]], str]
    system_prompt: str | None

    def __post_init__(self) -> None:
        if self.tokenizer.chat_template is None:
            raise ConfigError(
                f"agents.chat_template=true, but the tokenizer of {self.tokenizer.name_or_path} has none: "
                "set agents.chat_template=false, or name an instruction-tuned model"
            )

    def __call__(self, row: dict[str, Any]) -> str:
        """The rendered text; it opens with the template's own BOS token, if any.

        Raises:
            DataError: The template refuses these messages, as some do a system role.
        """
        messages = [{"role": "user", "content": self.inner(row)}]
        if self.system_prompt is not None:
            messages.insert(0, {"role": "system", "content": self.system_prompt})
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            way_out = "" if self.system_prompt is None else "; set agents.system_prompt=null"
            raise DataError(f"the chat template of {self.tokenizer.name_or_path} refuses: {error}{way_out}") from error
        return text
