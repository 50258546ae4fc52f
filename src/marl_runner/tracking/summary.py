"""The running values a person wants to see during a run and at its end; their number never grows with it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from statistics import fmean

from marl_runner.types import Event, Progress

_TURN_REWARD = re.compile(r"(?:^|/)turn_(\d+)/reward_mean$")
_MOST_WINDOW = 10


class RunSummary:
    """Rewards at the start, at the end and at best, and where the run stands.

    One task's reward is noisy, so rewards are averaged over a window: a tenth of the run's tasks, at least 1
    and at most 10 progress reports.
    """

    def __init__(self) -> None:
        self.latest: Progress | None = None
        self._first: Progress | None = None
        self._window = _MOST_WINDOW
        self._recent: deque[float] = deque(maxlen=_MOST_WINDOW)
        self._start: float | None = None
        self._best: float | None = None
        self._eval_by_turn: dict[int, tuple[float, float]] = {}

    def add_progress(self, progress: Progress) -> None:
        """Takes in where the run stands, and its reward if it has one."""
        if self._first is None:
            self._first = progress
            tenth = _MOST_WINDOW if progress.num_tasks is None else progress.num_tasks // 10
            self._window = min(max(tenth, 1), _MOST_WINDOW)
            self._recent = deque(maxlen=self._window)
        self.latest = progress
        if progress.reward_mean is None:
            return
        self._recent.append(progress.reward_mean)
        if len(self._recent) == self._window:
            mean = fmean(self._recent)
            self._start = mean if self._start is None else self._start
            self._best = mean if self._best is None else max(self._best, mean)

    def add_eval(self, event: Event) -> None:
        """Takes in the mean reward of each turn of an evaluation."""
        for turn, reward in turn_rewards(event.metrics).items():
            first, _ = self._eval_by_turn.get(turn, (reward, reward))
            self._eval_by_turn[turn] = (first, reward)

    def time_left_s(self) -> float | None:
        """Seconds until the last task at the rate since the first report; None while that is unknown.

        Counted from the first report on, because a resumed run starts with tasks that took no time here.
        """
        if self._first is None or self.latest is None or self.latest.num_tasks is None:
            return None
        done = self.latest.tasks_done - self._first.tasks_done
        if done <= 0:
            return None
        spent_s = self.latest.elapsed_s - self._first.elapsed_s
        return spent_s / done * (self.latest.num_tasks - self.latest.tasks_done)

    def line(self) -> str:
        """The run so far on one line; "" before the first report."""
        now = self.latest
        if now is None:
            return ""
        tasks = str(now.tasks_done) if now.num_tasks is None else f"{now.tasks_done}/{now.num_tasks}"
        parts = [f"task {tasks}", f"epoch {now.epoch + 1}/{now.num_epochs}"]
        if now.reward_mean is not None:
            parts.append(f"reward {now.reward_mean:.3f}")
        if now.return_mean is not None:
            parts.append(f"return {now.return_mean:.3f}")
        if now.elapsed_s > 0:
            parts.append(f"{now.generated_tokens / now.elapsed_s:.0f} tokens/s")
        left_s = self.time_left_s()
        if left_s is not None:
            parts.append(f"{clock_time(left_s)} left")
        return "  ".join(parts)

    def rows(self) -> list[tuple[str, str]]:
        """The final table as (name, value) rows; what the run never had is left out."""
        rows = []
        if self._recent:
            end = fmean(self._recent)
            start, best = (end if value is None else value for value in (self._start, self._best))
            rows += [("reward at the start", f"{start:.3f}"), ("reward at the end", f"{end:.3f}")]
            rows += [("best reward", f"{best:.3f}")]
        for turn, (first, last) in sorted(self._eval_by_turn.items()):
            rows.append((f"evaluation reward, turn {turn}", f"{first:.3f} -> {last:.3f}"))
        if self.latest is not None:
            rows += [("env steps", str(self.latest.env_step)), ("generated tokens", str(self.latest.generated_tokens))]
            if self.latest.elapsed_s > 0:
                rows.append(("tokens/s", f"{self.latest.generated_tokens / self.latest.elapsed_s:.0f}"))
            rows.append(("elapsed", clock_time(self.latest.elapsed_s)))
        return rows


def turn_rewards(metrics: Mapping[str, float]) -> dict[int, float]:
    """The mean reward of each turn, by turn from 1, out of metrics named `[area/]turn_1/reward_mean`."""
    found = ((_TURN_REWARD.search(name), value) for name, value in metrics.items())
    return {int(match[1]): value for match, value in found if match}


def clock_time(seconds: float) -> str:
    """Seconds as hours, minutes and seconds: 3725.4 is "1:02:05"."""
    return str(timedelta(seconds=round(seconds)))
