"""Rows from JSON Lines and JSON text, with the text in them left exactly as it is.

Arrow is not used here: it refuses lone surrogates, turns absent keys into None and guesses types.
"""

from __future__ import annotations

import json
from typing import Any

from marl_runner.datasets.utf8 import decode_utf8
from marl_runner.errors import DataError


def parse_jsonl(data: bytes, source: str) -> list[dict[str, Any]]:
    r"""One row per line, in order; blank lines are skipped.

    Lines end at \n or \r\n and nowhere else: U+2028, U+0085 and their like belong to the text around them.

    Args:
        data: The file, UTF-8 with or without a byte order mark.
        source: The file's name, for messages.

    Raises:
        DataError: A line is not a JSON object, or there is no row; the line is named.
    """
    rows = []
    for number, line in enumerate(decode_utf8(data, source).split("\n"), start=1):
        if line.strip(" \t\r"):
            where = f"line {number} of {source}"
            rows.append(_object(_parsed(line, where), where))
    if not rows:
        raise DataError(f"{source} has no rows, only blank lines")
    return rows


def parse_json(data: bytes, source: str) -> list[dict[str, Any]]:
    """The rows of one JSON list of objects, in order.

    Args:
        data: The file, UTF-8 with or without a byte order mark.
        source: The file's name, for messages.

    Raises:
        DataError: The file is not a JSON list of objects, or the list is empty; the row is named.
    """
    text = decode_utf8(data, source)
    if not text.strip():
        raise DataError(f"{source} has no rows, only blank lines")
    content = _parsed(text, source)
    if not isinstance(content, list):
        raise DataError(f"{source} holds {_kind(content)}, not a list of rows; write [{{...}}, {{...}}]")
    if not content:
        raise DataError(f"{source} has no rows, only an empty list")
    return [_object(row, f"row {number} of {source}") for number, row in enumerate(content, start=1)]


def _parsed(text: str, where: str) -> Any:
    try:
        # strict=False lets control characters (NUL, terminal codes) stand in strings as they are.
        return json.loads(text, strict=False, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        hint = "; one object per line belongs into a .jsonl file" if error.msg == "Extra data" else ""
        raise DataError(f"{where} is not valid JSON: {error.msg} at {place}{hint}") from error
    except RecursionError as error:
        raise DataError(f"{where} is nested too deeply to be read") from error
    except ValueError as error:
        raise DataError(f"{where} cannot be read: {str(error).partition(';')[0]}") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {repeated!r} appears more than once in one object")
    return row


def _object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f'{where} is {_kind(value)}, not an object such as {{"prompt": "..."}}')
    return value


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
