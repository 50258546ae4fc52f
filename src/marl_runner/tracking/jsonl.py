"""The local record of a run, always on: metrics.jsonl (a line per event) and rollouts.jsonl (a line per tree).

Both are ASCII: a completion may hold U+2028, NUL, ANSI codes or half a surrogate pair, and still every object
stays on one line that any reader can parse. Lines are appended and never rewritten.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_runner.errors import NumericalError
from marl_runner.types import Completion, Event, JointAction, Node, Progress, Sample, Task

_BLOCK_BYTES = 65536


class JsonlTracker:
    """Appends events to `folder/metrics.jsonl`, and every so many rollouts to `folder/rollouts.jsonl`.

    Args:
        folder: The run folder, created with the first line. Lines already there are kept; a torn last line, left
            by a kill or a full disk, is cut off so that the next object starts on a line of its own.
        rollouts_every: One of this many rollouts is written, the first one included; 0 writes none.
    """

    def __init__(self, folder: Path, rollouts_every: int) -> None:
        self._metrics = folder / "metrics.jsonl"
        self._rollouts = folder / "rollouts.jsonl"
        self._rollouts_every = rollouts_every
        self._num_rollouts = 0
        _cut_torn_line(self._metrics)
        _cut_torn_line(self._rollouts)

    def log(self, event: Event) -> None:
        """Appends one object: `kind`, `env_step`, `epoch`, then the metrics under their own names.

        Raises:
            NumericalError: If a metric is NaN or infinite.
            OSError: If the line cannot be written; the message has the path and the bytes.
        """
        record: dict[str, Any] = {"kind": event.kind, "env_step": event.env_step, "epoch": event.epoch}
        for name, value in event.metrics.items():
            record[name] = _finite(f"metric {name}", value, event.env_step)
        _append(self._metrics, record)

    def progress(self, progress: Progress) -> None:
        """Writes nothing: progress is for people who watch."""

    def rollout(self, task: Task, root: Node, samples: Sequence[Sample]) -> None:
        """Appends the whole tree of a task, for one call in `rollouts_every`.

        Args:
            task: The task the tree was grown from.
            root: The root of the tree.
            samples: The samples of the tree; a node's agent without one gets null returns and advantages.

        Raises:
            NumericalError: If a reward, return, advantage or reference KL is NaN or infinite.
            OSError: If the line cannot be written; the message has the path and the bytes.
        """
        number = self._num_rollouts
        self._num_rollouts += 1
        if self._rollouts_every == 0 or number % self._rollouts_every != 0:
            return
        by_place = {(sample.env_step, sample.agent): sample for sample in samples}
        fields = {str(name): _json_safe(value) for name, value in task.fields.items()}
        _append(self._rollouts, {"uid": task.uid, "fields": fields, "tree": _tree(root, by_place)})

    def close(self, status: str) -> None:
        """Holds nothing open, so there is nothing to close."""


def _tree(node: Node, samples: Mapping[tuple[int, int], Sample]) -> dict[str, Any]:
    returns_J = node.returns_J or (None,) * len(node.joint_actions_J)
    step = node.env_step
    return {
        "turn": node.turn,
        "env_step": step,
        "ended": node.ended,
        "prompts": [prompt.text for prompt in node.prompts_N],
        "completions": [
            _completions(completions_K, samples.get((step, agent)), step)
            for agent, completions_K in enumerate(node.completions_N_K)
        ],
        "joint_actions": [
            _joint_action(action, joint_return, step)
            for action, joint_return in zip(node.joint_actions_J, returns_J, strict=True)
        ],
        "children": [_tree(child, samples) for child in node.children_J],
    }


def _joint_action(action: JointAction, joint_return: float | None, env_step: int) -> dict[str, Any]:
    record: dict[str, Any] = {
        "index": list(action.index_N),
        "reward": _finite("reward", action.reward, env_step),
        "return": _finite("return", joint_return, env_step),
    }
    if action.components:
        record["components"] = {
            name: _finite(f"component {name}", value, env_step) for name, value in action.components.items()
        }
    return record


def _completions(completions_K: Sequence[Completion], sample: Sample | None, env_step: int) -> list[dict[str, Any]]:
    # A node that ended before sampling shares its parent's env_step, so the parent's sample is not its own.
    absent = (None,) * len(completions_K)
    found = sample if completions_K else None
    returns_K = absent if found is None else found.returns_K
    advantages_K = absent if found is None else found.advantages_K
    records = []
    for completion, credited, advantage in zip(completions_K, returns_K, advantages_K, strict=True):
        record: dict[str, Any] = {
            "text": completion.text,
            "token_ids": list(completion.token_ids),
            "finished": completion.finished,
            "return": _finite("credited return", credited, env_step),
            "advantage": _finite("advantage", advantage, env_step),
        }
        if completion.reference_kl is not None:
            record["reference_kl"] = _finite("reference_kl", completion.reference_kl, env_step)
        records.append(record)
    return records


def _finite(name: str, value: float | None, env_step: int) -> float | None:
    if value is not None and not math.isfinite(value):
        raise NumericalError(f"{name} is {value} at env_step {env_step}; only finite numbers are recorded")
    return value


def _json_safe(value: object) -> object:
    """The value itself where JSON can hold it, else its text: a dataset row may hold NaN, dates or arrays."""
    try:
        json.dumps(value, allow_nan=False, default=str)
    except (TypeError, ValueError):
        return str(value)
    return value


def _append(path: Path, record: Mapping[str, Any]) -> None:
    line = json.dumps(record, ensure_ascii=True, allow_nan=False, default=str) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line.encode("ascii"))
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}: cannot append {len(line)} bytes", str(path)) from error


def _cut_torn_line(path: Path) -> None:
    if not path.is_file():
        return
    with path.open("r+b") as file:
        start = file.seek(0, os.SEEK_END)
        while start > 0:
            end, start = start, max(0, start - _BLOCK_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
        file.truncate(0)
