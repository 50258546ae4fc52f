"""Texts with names in braces."""

from __future__ import annotations

from collections.abc import Mapping


def filled(template: str, values: Mapping[str, str]) -> str:
    """A template with values in place of their names in braces.

    Braces around anything else, and braces inside the values, are left as they are.
    """
    text, *parts = template.split("{")
    for part in parts:
        name, brace, rest = part.partition("}")
        text += values[name] + rest if brace and name in values else "{" + part
    return text


def missing_names(template: str, names: tuple[str, ...]) -> str:
    """The names that a template does not have in braces, for messages: `{prompt} and no {answer}`; "" if it has all."""
    return " and no ".join(f"{{{name}}}" for name in names if f"{{{name}}}" not in template)
