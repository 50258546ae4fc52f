"""Where the seconds of a run go."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Phase = Literal["rollout", "sampling", "reward", "update", "evaluation"]


class PhaseClock:
    """Adds up seconds of wall time by phase; "rollout" holds "sampling" and "reward"."""

    def __init__(self) -> None:
        self._seconds: dict[Phase, float] = defaultdict(float)

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        """Adds what the block takes."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[phase] += time.perf_counter() - started

    def take(self) -> dict[Phase, float]:
        """The seconds since the last call."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken
