"""One run, one folder: who owns it, and what is written when the run ends."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from marl_runner.errors import RunFolderError


class RunFolder:
    """Owns a run folder from entering until leaving the `with` block.

    Args:
        path: The folder; made if it is not there.

    Raises:
        RunFolderError: On entering, when another live run owns it or it holds an earlier run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._started = time.monotonic()

    def __enter__(self) -> RunFolder:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = lock(self.path, os.O_RDWR | os.O_CREAT)
        try:
            refuse_used(self.path)
        except RunFolderError:
            os.close(self._lock)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._lock is not None
        os.close(self._lock)

    def write_summary(self, status: str, error: BaseException | None, facts: Mapping[str, Any]) -> None:
        """Writes summary.json, complete or not at all.

        Args:
            status: completed, failed or preempted.
            error: What ended the run, or None.
            facts: Objective, algorithm, counts, weights, command.
        """
        summary = {
            "status": status,
            **facts,
            "seconds": round(time.monotonic() - self._started, 3),
            "versions": versions(),
            "error": None if error is None else {"kind": type(error).__name__, "message": str(error)},
        }
        unfinished = self.path / "summary.json.tmp"
        unfinished.write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
        unfinished.replace(self.path / "summary.json")


def lock(path: Path, flags: int) -> int:
    """Opens the lock file of a run folder and takes it; closing the descriptor, or dying, gives it back.

    Raises:
        RunFolderError: Another live run has it.
    """
    descriptor = os.open(path / "run.lock", flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise RunFolderError(f"another run is at work in {path}; choose another hydra.run.dir") from error
    return descriptor


def refuse_taken(path: Path) -> None:
    """Raises RunFolderError when a live run owns `path` or it holds an earlier one; changes nothing."""
    if (path / "run.lock").is_file():
        os.close(lock(path, os.O_RDWR))
    refuse_used(path)


def refuse_used(path: Path) -> None:
    """Raises RunFolderError when `path` holds what an earlier run wrote, with which a new one would mix."""
    for name in ("summary.json", "metrics.jsonl"):
        if (path / name).exists():
            raise RunFolderError(f"{path} holds an earlier run ({name}); choose another hydra.run.dir, or remove it")


def versions() -> dict[str, str]:
    """Versions of Python and of what computes the numbers."""
    packages = ("marl-runner", "torch", "transformers", "datasets", "hydra-core", "omegaconf")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}
