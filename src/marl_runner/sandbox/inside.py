"""The program process: holds the generated code alone, and answers calls of its functions with plain values.

Whatever the code does to this process (patching these functions, writing to the pipe itself) changes its own answers
only: the tests, and the comparison of answers with what is expected, are in another process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from marl_runner.sandbox.confinement import confine, limit_resources
from marl_runner.sandbox.frames import read_frame, write_frame
from marl_runner.sandbox.plain import dumped, loaded

MOST_OF_A_MESSAGE = 300
"""Characters of an exception's text."""


def main() -> None:
    """Confines itself, runs the program's source, then answers calls until it is killed.

    Reads the descriptors of its two pipes from the command line.
    """
    reading, writing = (int(word) for word in sys.argv[2:4])
    setup = read_frame(reading)
    if setup is None:
        return
    told: dict[str, Any] = json.loads(setup)
    try:
        limit_resources(told["limits"])
        confine(told["layers"], told["readable"], os.getcwd())
    except OSError as error:
        write_frame(writing, json.dumps({"refused": str(error)}).encode("ascii"))
        return
    namespace: dict[str, Any] = {"__name__": "program"}
    answer(writing, partial(run, told["program"], namespace))
    while (request := read_frame(reading)) is not None:
        answer(writing, partial(call, namespace, *loaded(request)))


def run(source: str, namespace: dict[str, Any]) -> None:
    """Defines what a source defines."""
    exec(compile(source, "<program>", "exec"), namespace)


def call(namespace: Mapping[str, Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a function of the program returns."""
    return namespace[name](*args, **kwargs)


def answer(writing: int, call: Callable[[], Any]) -> None:
    """Sends what a call returns, or what it raises."""
    try:
        message = b'{"returned":' + dumped(call()) + b"}"
    except BaseException as error:  # noqa: BLE001  whatever it is, the caller is told
        message = json.dumps({"raised": told_of(error)}).encode("ascii")
    write_frame(writing, message)


def told_of(error: BaseException) -> Mapping[str, str]:
    """Kind and text of an exception; its own `__str__` is the program's and may fail too."""
    try:
        text = str(error)[:MOST_OF_A_MESSAGE]
    except BaseException:  # noqa: BLE001
        text = ""
    return {"kind": type(error).__name__, "message": text}
