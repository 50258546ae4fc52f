"""How a program ends, or a call of it, other than by an answer."""

from __future__ import annotations

import builtins


class LostError(BaseException):
    """The program is gone and was killed; not an Exception, which a test might catch.

    Attributes:
        kind: As in `jobs.TestOutcome`.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RaisedError(Exception):
    """The program raised an exception that is none of Python's own.

    Attributes:
        kind: Name of its class.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RefusedError(Exception):
    """The kernel refused a layer of confinement."""


def raised_of(kind: str, message: str) -> Exception:
    """An exception of the program as the tests may expect it: Python's own class, or RaisedError."""
    known = vars(builtins).get(kind)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(message)
        except TypeError:  # UnicodeDecodeError and its like need more than a text
            return RaisedError(kind, message)
    return RaisedError(kind, message)
