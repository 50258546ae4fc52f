"""The processes below this one."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from marl_runner.sandbox.endings import LostError

REAP_S = 10.0
"""Seconds in which what a program started is killed, before this is given up."""


def descendants(process: int) -> list[int]:
    """Ids of the processes that a process has started and that are alive."""
    found = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            children = Path(f"/proc/{process}/task/{task}/children").read_text()
            found += [int(child) for child in children.split()]
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def reap_orphans() -> None:
    """Kills every process that was started below this one, detached ones too, until there is none.

    This process must be a subreaper: then what loses its parent becomes its child.

    Raises:
        LostError: They are started faster than they are killed.
    """
    deadline = time.monotonic() + REAP_S
    while children := descendants(os.getpid()):
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        while reaped():
            pass
        if time.monotonic() > deadline:
            raise LostError("exit", f"{len(children)} processes cannot be killed")


def reaped() -> bool:
    """Takes note of one dead child; False if there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False
