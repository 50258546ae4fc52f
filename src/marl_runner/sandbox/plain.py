"""Values that cross the border between checker and program: plain ones only, written as JSON.

A value is rebuilt from numbers, texts and containers, so what arrives is never an object of the program's own: a class
that overrides `__eq__` comes across as what it derives from, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

MOST_OF_AN_ITERATOR = 100_000
"""Values that are taken from an iterator, which need not end."""
LONG = 2**63
"""From here on an integer is written in hexadecimal digits, which are read in linear time."""


class NotPlainError(Exception):
    """A value that has no plain form."""


def dumped(value: Any) -> bytes:
    """A value as ASCII JSON.

    Raises:
        NotPlainError: It has no plain form.
        RecursionError: It contains itself, or is nested too deeply.
    """
    return json.dumps(encoded(value)).encode("ascii")


def loaded(data: bytes) -> Any:
    """The value that `dumped` wrote.

    Raises:
        ValueError: The bytes are nothing that it writes.
        RecursionError: They are nested too deeply.
    """
    return rebuilt(json.loads(data))


def rebuilt(value: Any) -> Any:
    """The value of which `encoded` made this JSON.

    Raises:
        ValueError: It is nothing that it makes.
        RecursionError: It is nested too deeply.
    """
    try:
        return decoded(value)
    except (KeyError, TypeError, IndexError, AttributeError, OverflowError, MemoryError) as error:
        raise ValueError(f"not an answer: {error}") from error


def encoded(value: Any) -> Any:
    """A value as JSON has it: itself, a list, or {kind: parts}."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -LONG < number < LONG else {"int": hex(number)}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [encoded(part) for part in list.__iter__(value)]
    for kind, (base, parts) in CONTAINERS.items():
        if isinstance(value, base):
            return {kind: parts(value)}
    raise NotPlainError(f"a value of type {type(value).__name__}, which is no plain one, was returned")


def _values(base: Any) -> Any:
    return lambda value: [encoded(part) for part in base.__iter__(value)]


CONTAINERS: dict[str, tuple[Any, Any]] = {
    "tuple": (tuple, _values(tuple)),
    "dict": (dict, lambda value: [[encoded(key), encoded(part)] for key, part in dict.items(value)]),
    "set": (set, _values(set)),
    "frozenset": (frozenset, _values(frozenset)),
    "complex": (complex, lambda value: [value.real, value.imag]),
    "bytes": (bytes, lambda value: bytes.hex(value)),
    "range": (range, lambda value: [encoded(part) for part in (value.start, value.stop, value.step)]),
    "iterator": (Iterator, lambda value: [encoded(part) for part in islice(value, MOST_OF_AN_ITERATOR)]),
}
"""Kind → the type it stands for, and its parts."""


def decoded(value: Any) -> Any:
    """The value that `encoded` made this of."""
    if isinstance(value, list):
        return [decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    return MADE[kind](parts)


MADE: dict[str, Any] = {
    "int": lambda digits: int(digits, 16),
    "tuple": lambda parts: tuple(decoded(part) for part in parts),
    "dict": lambda pairs: {decoded(key): decoded(part) for key, part in pairs},
    "set": lambda parts: {decoded(part) for part in parts},
    "frozenset": lambda parts: frozenset(decoded(part) for part in parts),
    "complex": lambda parts: complex(*parts),
    "bytes": bytes.fromhex,
    "range": lambda parts: range(*(decoded(part) for part in parts)),
    "iterator": lambda parts: iter([decoded(part) for part in parts]),
}
"""Kind → what makes the value of its parts."""
