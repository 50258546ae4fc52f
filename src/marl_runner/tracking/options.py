"""The `tracking` config group, and the fan-out that makes several trackers one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

from marl_runner.errors import ConfigError
from marl_runner.tracking.console import ConsoleTracker
from marl_runner.tracking.jsonl import JsonlTracker
from marl_runner.tracking.wandb import WandbTracker
from marl_runner.types import Event, Node, Progress, Sample, Task, Tracker

_WANDB_MODES = ("off", "online", "offline")
_WANDB_KEYS = ("project", "entity", "name", "run_name", "group", "tags", "mode", "dir", "config_sections")
_WANDB_KINDS: dict[str, tuple[Any, str]] = {
    "tags": ((list, tuple), "a list"),
    "dir": ((str, PathLike), "a folder"),
    "config_sections": (Mapping, "a mapping"),
}
"""Kinds of the values that are not text."""


@dataclass(frozen=True)
class Tracking:
    """Where a run's events go; the files in the run folder are always written.

    Attributes:
        console: Show a live line and a final table, or plain lines when stdout is not a terminal.
        rollouts_every: One of this many tasks has its whole tree written to rollouts.jsonl; 0 writes none.
        wandb: "off", "online" or "offline"; online falls back to offline where it cannot start.
        wandb_project: Project name, 1 to 128 characters.
        wandb_entity: User or team; None is the one of the login.
        wandb_group: Group of the run; None is the sweep's name, given by the caller.
        wandb_name: Display name of the run; None lets wandb choose.
        wandb_tags: Tags of the run, 1 to 64 characters each.
        wandb_timeout_s: Seconds wandb may take to start, and again to finish; > 0.
    """

    console: bool
    rollouts_every: int
    wandb: str
    wandb_project: str
    wandb_entity: str | None
    wandb_group: str | None
    wandb_name: str | None
    wandb_tags: list[str]
    wandb_timeout_s: float

    def __post_init__(self) -> None:
        """Refuses values out of range.

        Raises:
            ConfigError: Naming the key, the value and what is allowed.
        """
        if self.wandb not in _WANDB_MODES:
            raise ConfigError(f"tracking.wandb must be off, online or offline, got {self.wandb!r}; {self._hint()}")
        if self.rollouts_every < 0:
            raise ConfigError(f"tracking.rollouts_every must be >= 0 (0 writes none), got {self.rollouts_every}")
        if not 0 < self.wandb_timeout_s < math.inf:
            raise ConfigError(f"tracking.wandb_timeout_s must be > 0 and finite, got {self.wandb_timeout_s}")
        if not 1 <= len(self.wandb_project) <= 128 or set(self.wandb_project) & set("/\\#?%:"):
            raise ConfigError(
                f"tracking.wandb_project must have 1 to 128 characters and none of / \\ # ? % :, "
                f"got {self.wandb_project!r}"
            )
        for tag in self.wandb_tags:
            if not 1 <= len(tag) <= 64:
                raise ConfigError(f"tracking.wandb_tags must have 1 to 64 characters each, got {tag!r}")

    def __call__(
        self,
        folder: Path,
        config: dict[str, object],
        group: str | None = None,
        resumed: bool = False,
        wandb_folder: Path | None = None,
    ) -> list[Tracker]:
        """Returns the trackers of one run; nothing is shown and wandb is not imported before the first event.

        Args:
            folder: The run folder.
            config: The whole resolved configuration as plain containers, for wandb.
            group: The sweep's name, the wandb group where `wandb_group` is None.
            resumed: True where the run continues from a checkpoint; only then is its wandb id used again.
            wandb_folder: Where wandb's own files go; None is `folder`.
        """
        trackers: list[Tracker] = [JsonlTracker(folder, self.rollouts_every)]
        if self.console:
            trackers.append(ConsoleTracker(folder=folder))
        if self.wandb != "off":
            trackers.append(
                WandbTracker(
                    folder if wandb_folder is None else wandb_folder,
                    mode=self.wandb,
                    project=self.wandb_project,
                    entity=self.wandb_entity,
                    group=group if self.wandb_group is None else self.wandb_group,
                    name=self.wandb_name,
                    tags=self.wandb_tags,
                    config=config,
                    init_timeout_s=self.wandb_timeout_s,
                    resumed=resumed,
                )
            )
        return trackers

    def _hint(self) -> str:
        if self.wandb in ("False", "True"):
            return 'YAML reads a bare off as false: write "off" with quotes'
        return f"nearest: {get_close_matches(self.wandb, _WANDB_MODES, n=1, cutoff=0)[0]}"


class Trackers:
    """Several trackers as one."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = tuple(trackers)

    def log(self, event: Event) -> None:
        """Passes the event to every tracker, in order."""
        for tracker in self._trackers:
            tracker.log(event)

    def progress(self, progress: Progress) -> None:
        """Passes the progress to every tracker, in order."""
        for tracker in self._trackers:
            tracker.progress(progress)

    def rollout(self, task: Task, root: Node, samples: Sequence[Sample]) -> None:
        """Passes the tree to every tracker, in order."""
        for tracker in self._trackers:
            tracker.rollout(task, root, samples)

    def close(self, status: str) -> None:
        """Closes every tracker in order, then raises what any of them raised."""
        with ExitStack() as stack:
            for tracker in reversed(self._trackers):
                stack.callback(tracker.close, status)


def default_trackers(folder: Path, wandb_config: Mapping[str, Any] | None, settings: Mapping[str, object]) -> Trackers:
    """Returns the trackers of a trainer made in Python: files in `folder`, and a wandb run if one is asked for.

    Args:
        folder: Run folder, created with the first line written.
        wandb_config: Any of `project` (default "marl-runner"), `entity`, `name` or `run_name`, `group`, `tags`,
            `mode` (default "online"), `dir` (of wandb's own files; default `folder`) and `config_sections`, a
            mapping shown beside the settings; None is no wandb run.
        settings: The run's settings, shown by wandb as its configuration.

    Raises:
        ConfigError: An unknown key, or a value out of range.
    """
    given = wandb_values(wandb_config)
    tracking = Tracking(
        console=False,
        rollouts_every=10,
        wandb="off" if wandb_config is None else given.get("mode", "online"),
        wandb_project=given.get("project", "marl-runner"),
        wandb_entity=given.get("entity"),
        wandb_group=given.get("group"),
        wandb_name=given.get("name", given.get("run_name")),
        wandb_tags=list(given.get("tags", ())),
        wandb_timeout_s=30.0,
    )
    wandb_folder = Path(given["dir"]) if "dir" in given else None
    config = {**settings, **given.get("config_sections", {})}
    return Trackers(tracking(folder, config, wandb_folder=wandb_folder))


def wandb_values(wandb_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys of a `wandb_config` that say something; None is as good as absent.

    Raises:
        ConfigError: It is no mapping, or has an unknown key, or a value of another kind than its key's.
    """
    if wandb_config is None:
        return {}
    if not isinstance(wandb_config, Mapping):
        raise ConfigError(f"wandb_config must be a mapping or None, got {wandb_config!r}")
    given = {key: value for key, value in wandb_config.items() if value is not None}
    for key, value in given.items():
        if key not in _WANDB_KEYS:
            nearest = get_close_matches(str(key), _WANDB_KEYS, n=1, cutoff=0)[0]
            raise ConfigError(f"wandb_config takes {', '.join(_WANDB_KEYS)}, got {key!r}; nearest: {nearest}")
        kind, said = _WANDB_KINDS.get(key, (str, "text"))
        if not isinstance(value, kind):
            raise ConfigError(f"wandb_config {key} must be {said}, got {value!r}")
        if key == "tags" and not all(isinstance(tag, str) for tag in value):
            raise ConfigError(f"wandb_config tags must be texts, got {value!r}")
    return given
