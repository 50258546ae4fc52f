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
        RunFolderError: On entering, when another live run owns it or it holds a finished run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._started = time.monotonic()

    def __enter__(self) -> RunFolder:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "run.lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise RunFolderError(f"another run is at work in {self.path}; choose another hydra.run.dir") from error
        refuse_finished(self.path)
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


def refuse_finished(path: Path) -> None:
    """Raises RunFolderError when `path` holds the summary of a completed run."""
    summary = path / "summary.json"
    if summary.is_file() and json.loads(summary.read_text())["status"] == "completed":
        raise RunFolderError(f"{path} holds a finished run; choose another hydra.run.dir, or remove it")


def versions() -> dict[str, str]:
    """Versions of Python and of what computes the numbers."""
    packages = ("marl-runner", "torch", "transformers", "datasets", "hydra-core", "omegaconf")
    return {"python": platform.python_version(), **{package: version(package) for package in packages}}
