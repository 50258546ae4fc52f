"""What isolates a program on this machine, found by trying."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from socket import create_server

from marl_runner.errors import ConfigError
from marl_runner.sandbox.confinement import seccomp_library
from marl_runner.sandbox.endings import LostError, RefusedError
from marl_runner.sandbox.jobs import Limits
from marl_runner.sandbox.program import Program

COMBINATIONS = (("landlock", "seccomp"), ("seccomp",), ("namespaces", "landlock"), ("landlock",), ("namespaces",), ())
"""Layers that are tried one after the other until the kernel takes them."""

PROBE = """
import os, signal, socket

def allowed(attempt):
    try:
        attempt()
    except OSError:
        return False
    return True

def connect():
    with socket.socket() as connection:
        connection.settimeout(0.2)
        if connection.connect_ex(("127.0.0.1", {port})):
            raise OSError

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)

def probe():
    return {{
        "network": allowed(connect),
        "files outside": allowed(lambda: open({path!r}).close()),
        "other processes": allowed(fork),
        "signals to others": allowed(lambda: os.kill(os.getppid(), 0)),
    }}
"""
"""A program that tries what isolation should forbid."""


@dataclass(frozen=True)
class Isolation:
    """What is in force.

    Attributes:
        layers: Of `confinement.LAYERS`.
        forbidden: What a program cannot do, as tried.
        allowed: What it can.
    """

    layers: tuple[str, ...]
    forbidden: tuple[str, ...]
    allowed: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether everything that should be forbidden is."""
        return not self.allowed

    def __str__(self) -> str:
        """One line for people."""
        by = f" by {' and '.join(self.layers)}" if self.layers else ""
        forbidden = f"forbidden{by}: {', '.join(self.forbidden)}" if self.forbidden else "nothing is forbidden"
        allowed = f"; NOT forbidden: {', '.join(self.allowed)}" if self.allowed else ""
        return f"sandbox: limits on time, memory, files and output; {forbidden}{allowed}"


def find_isolation(limits: Limits, required: bool) -> Isolation:
    """The strongest isolation that this machine gives to a process without privileges.

    Args:
        limits: Under which the probe runs.
        required: Refuse anything less than complete isolation.

    Raises:
        ConfigError: It is required and not to be had, or no program runs under these limits at all.
    """
    found = next(isolation for layers in COMBINATIONS if (isolation := tried(layers, limits)) is not None)
    if required and not found.is_complete:
        library = "" if seccomp_library() else "; install the system's libseccomp (Debian: libseccomp2)"
        raise ConfigError(
            f"reward.sandbox=require, but on this machine a program can reach {', '.join(found.allowed)}{library}, "
            "run on Linux >= 5.13 with Landlock, or set reward.sandbox=auto to accept that"
        )
    return found


def tried(layers: tuple[str, ...], limits: Limits) -> Isolation | None:
    """What a program can do under some layers; None where the kernel refuses them."""
    with tempfile.TemporaryDirectory(prefix="marl-sandbox-") as scratch, create_server(("127.0.0.1", 0)) as server:
        outside = Path(scratch, "outside")
        outside.touch()
        source = PROBE.format(port=server.getsockname()[1], path=str(outside))
        deadline = time.monotonic() + max(limits.wall_s, 5.0)
        try:
            program = Program(source, limits, layers, Path(scratch), lambda: None, deadline)
        except RefusedError:
            return None
        except LostError as lost:
            raise ConfigError(f"no program can run under the limits of the sandbox ({limits}): {lost}") from lost
        try:
            answers = program.call("probe", [], {}, deadline)
        finally:
            program.close()
    return Isolation(
        layers,
        tuple(what for what, allowed in answers.items() if not allowed),
        tuple(what for what, allowed in answers.items() if allowed),
    )
