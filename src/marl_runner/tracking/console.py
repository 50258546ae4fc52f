"""The run on a screen: one live line and a final table on a terminal, a few plain lines anywhere else."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from marl_runner.tracking.summary import RunSummary, turn_rewards
from marl_runner.types import Event, Node, Progress, Sample, Task

log = logging.getLogger(__name__)

_LIVE_EVERY_S = 0.1
_PLAIN_EVERY_S = 10.0


class ConsoleTracker:
    """Shows where a run stands; prompts and completions are never shown.

    Everything printed is a `rich.text.Text`, because rich reads `[bold]` and `:smile:` in plain strings as markup.

    Args:
        console: Where to print; None is stdout, looked at when the first line is due, so that a tracker can be
            pickled and sent to another process before it has shown anything.
        clock: Monotonic seconds, from any origin.
        folder: The run folder, named at the end, where the first line has scrolled away; None names none.
    """

    def __init__(
        self,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        folder: Path | None = None,
    ) -> None:
        self._console = console
        self._folder = folder
        self._clock = clock
        self._live: Live | None = None
        self._summary = RunSummary()
        self._shown: Progress | None = None
        self._shown_s = 0.0
        self._gone = False

    def log(self, event: Event) -> None:
        """Prints one plain line for an evaluation; other events are for the files."""
        if event.kind != "eval":
            return
        self._summary.add_eval(event)
        rewards = turn_rewards(event.metrics)
        values = [f"turn {turn} reward {reward:.3f}" for turn, reward in sorted(rewards.items())]
        if not values:
            values = [f"{name} {value:.3f}" for name, value in event.metrics.items()]
        self._guarded(lambda: self._print("  ".join(["eval", f"env_step {event.env_step}", *values])))

    def progress(self, progress: Progress) -> None:
        """Refreshes the live line, or prints a plain one when it is the first or the last was 10 s ago."""
        self._summary.add_progress(progress)
        every_s = _LIVE_EVERY_S if self._is_live() else _PLAIN_EVERY_S
        if self._shown is None or self._clock() - self._shown_s >= every_s:
            self._guarded(self._show)

    def rollout(self, task: Task, root: Node, samples: Sequence[Sample]) -> None:
        """Shows nothing: rollouts.jsonl has the texts."""

    def close(self, status: str) -> None:
        """Ends the live line, shows the last progress if it was not shown yet, and prints the final table."""
        self._guarded(lambda: self._close(status))

    def _guarded(self, show: Callable[[], None]) -> None:
        """Shows something; a console that is closed or full ends the showing, never the run."""
        if self._gone:
            return
        try:
            show()
        except (OSError, ValueError) as error:
            self._gone = True
            log.warning("the console cannot be written to (%s); the run goes on without it", error)

    def _close(self, status: str) -> None:
        if self._summary.latest is not self._shown:
            self._show()
        if self._live is not None:
            self._live.stop()
            self._live = None
        rows = self._summary.rows()
        if self._folder is not None:
            rows.append(("run folder", os.path.relpath(self._folder)))
        if self._is_live() and rows:
            table = Table(title=Text(f"run {status}"), show_header=False)
            for name, value in rows:
                table.add_row(Text(name), Text(value, justify="right"))
            self._open().print(table)
            return
        self._print(f"run {status}")
        for name, value in rows:
            self._print(f"  {name:<26}{value}")

    def _open(self) -> Console:
        if self._console is None:
            # Without force_terminal, FORCE_COLOR in the environment would send control codes into a pipe.
            self._console = Console(force_terminal=sys.stdout is not None and sys.stdout.isatty())
        return self._console

    def _is_live(self) -> bool:
        console = self._open()
        return console.is_terminal and not console.is_dumb_terminal

    def _show(self) -> None:
        self._shown, self._shown_s = self._summary.latest, self._clock()
        if not self._is_live():
            self._print(self._summary.line())
            return
        if self._live is None:
            # No refresh thread: a thread would not survive a fork, nor let the tracker be pickled.
            self._live = Live(console=self._open(), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Text(self._summary.line(), no_wrap=True, overflow="ellipsis"), refresh=True)

    def _print(self, line: str) -> None:
        self._open().print(Text(line), soft_wrap=True)
