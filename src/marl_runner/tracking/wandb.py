"""One Weights & Biases run per job, which can neither stop nor hold up training.

All calls to wandb are made by one daemon thread that training hands rows to. wandb waits without limit in several
places (its service process, uploads at the end, an exit hook), so training waits for that thread, never for wandb,
and only so long. Whatever goes wrong costs one warning line.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from marl_runner.tracking.wandb_run import RunRequest, release_service, start_run, survives
from marl_runner.types import Event, Node, Progress, Sample, Task

logger = logging.getLogger(__name__)

_MOST_QUEUED_ROWS = 10_000
# Importing wandb and starting its service process take a few seconds whatever the network does.
_GRACE_S = 10.0


class WandbTracker:
    """Sends events to one wandb run, with `env_step` as the axis of every metric.

    The run starts at the first progress or event. Online needs a login (never asked for) and a network; without
    them the run goes offline, and if that fails too, there is no run.

    Args:
        folder: The run folder; wandb's own files go to `folder/wandb`.
        mode: "online" or "offline".
        project: Project name.
        entity: User or team; None is the one of the login.
        group: Group of the run, shared by the jobs of a sweep; None is no group.
        name: Display name; None lets wandb choose.
        tags: Tags of the run.
        config: The whole resolved configuration as plain containers.
        init_timeout_s: Seconds an online start may take, and again the finish; a start that fails in every way
            takes at most twice this and 10 s.
        resumed: True where the run in `folder` is continued; only then is its wandb id used again.
    """

    def __init__(
        self,
        folder: Path,
        mode: str,
        project: str,
        entity: str | None,
        group: str | None,
        name: str | None,
        tags: Sequence[str],
        config: dict[str, object],
        init_timeout_s: float,
        resumed: bool = False,
    ) -> None:
        self._request = RunRequest(
            folder, mode, project, entity, group, name, tuple(tags), config, init_timeout_s, resumed
        )
        self._thread: _WandbThread | None = None

    def log(self, event: Event) -> None:
        """Hands one row over; it is dropped once 10 000 rows wait."""
        self._started().put({"env_step": event.env_step, "epoch": event.epoch, **event.metrics})

    def progress(self, progress: Progress) -> None:
        """Starts the run if it was not started yet."""
        self._started()

    def rollout(self, task: Task, root: Node, samples: Sequence[Sample]) -> None:
        """Sends nothing: rollouts.jsonl has the texts."""

    def close(self, status: str) -> None:
        """Marks the run completed, failed or preempted, and waits a bounded time for the upload."""
        if self._thread is not None:
            self._thread.finish(status)
            self._thread = None

    def _started(self) -> _WandbThread:
        if self._thread is None:
            self._thread = _WandbThread(self._request)
        return self._thread


class _WandbThread:
    def __init__(self, request: RunRequest) -> None:
        self._request = request
        self._rows: SimpleQueue[dict[str, float] | None] = SimpleQueue()
        self._status = ""
        self._ready = threading.Event()
        self._behind = False
        self._failed = False
        self._thread = threading.Thread(target=self._main, name="marl-runner-wandb", daemon=True)
        self._thread.start()
        limit_s = 2 * request.timeout_s + _GRACE_S
        if not self._ready.wait(limit_s):
            self._give_up(f"wandb did not start within {limit_s:g} s; going on without it")

    def put(self, row: dict[str, float]) -> None:
        if self._rows.qsize() < _MOST_QUEUED_ROWS:
            self._rows.put(row)
        elif not self._behind and not self._failed:
            self._behind = True
            logger.warning("wandb is %d rows behind; rows are dropped", _MOST_QUEUED_ROWS)

    def finish(self, status: str) -> None:
        limit_s = 0.0 if self._failed else self._request.timeout_s
        self._status = status
        self._rows.put(None)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            where = self._request.folder / "wandb"
            self._give_up(f"wandb did not finish within {limit_s:g} s; `wandb sync` uploads the rest from {where}")
        if self._failed:
            release_service()

    def _main(self) -> None:
        run = start_run(self._request)
        self._failed = self._failed or run is None
        self._ready.set()
        if run is None:
            return
        with survives(lambda reason: self._give_up(f"wandb stopped ({reason}); going on without it")):
            while (row := self._rows.get()) is not None:
                run.log(row)
            if self._status == "preempted":
                run.mark_preempting()
            run.finish(exit_code=0 if self._status == "completed" else 1)

    def _give_up(self, message: str) -> None:
        if not self._failed:
            self._failed = True
            logger.warning("%s", message)
