"""What is said to wandb, and the order of its fall-backs; the only module that imports wandb, and only inside calls."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from wandb import Run

logger = logging.getLogger(__name__)

_RELEASE_S = 2.0


@dataclass(frozen=True)
class RunRequest:
    """The arguments of one wandb run; `WandbTracker` says what they mean."""

    folder: Path
    mode: str
    project: str
    entity: str | None
    group: str | None
    name: str | None
    tags: tuple[str, ...]
    config: dict[str, object]
    timeout_s: float
    resumed: bool


def start_run(request: RunRequest) -> Run | None:
    """A started run: in the mode asked for, else offline, else None, with one warning line for each step down."""
    if request.mode == "online":
        with survives(lambda reason: logger.warning("wandb could not start online (%s); going offline", reason)):
            return _init(request, "online")
    with survives(lambda reason: logger.warning("wandb could not start offline (%s); going on without it", reason)):
        return _init(request, "offline")
    return None


def _init(request: RunRequest, mode: Literal["online", "offline"]) -> Run:
    # wandb's reports about itself flush in an exit hook, which a dead network holds up for half a minute.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    # Global settings, because the login's messages and prompts are ruled by these alone.
    wandb.setup(settings=wandb.Settings(silent=True, mode=mode))
    # login() answers False while another run is active; that one has logged in already.
    if mode == "online" and wandb.run is None and not wandb.login(prompt=False, verify=False):
        raise wandb.errors.UsageError("not logged in: set WANDB_API_KEY or run `wandb login`")
    run_id = _last_run_id(request.folder) if request.resumed else None
    run = wandb.init(
        dir=str(request.folder),
        mode=mode,
        project=request.project,
        entity=request.entity,
        group=request.group,
        name=request.name,
        tags=request.tags,
        config=request.config,
        id=run_id,
        resume="allow" if run_id is not None and mode == "online" else None,
        reinit="create_new",
        # console="off": wandb's wrapping of stdout breaks the live line, and train.log has the text.
        settings=wandb.Settings(init_timeout=request.timeout_s, console="off", silent=True),
    )
    # wandb drops rows whose step goes back, so its own step only counts rows and env_step is a metric.
    run.define_metric("env_step")
    run.define_metric("*", step_metric="env_step")
    logger.info("wandb %s: %s", mode, run.url if mode == "online" else f"wandb sync {Path(run.dir).parent}")
    return run


def _last_run_id(folder: Path) -> str | None:
    """The id in the name of wandb's newest file `run-<id>.wandb`, or None where there is none."""
    files = sorted(folder.glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime)
    return files[-1].stem.removeprefix("run-") if files else None


def release_service() -> None:
    """Ends wandb's service process without waiting for it, as wandb's own exit hook would, without limit.

    teardown takes that hook off before it waits itself, so it may wait on a thread that nobody waits for.
    """

    def teardown() -> None:
        import wandb

        with survives(lambda reason: logger.debug("wandb teardown: %s", reason)):
            wandb.teardown()

    thread = threading.Thread(target=teardown, name="marl-runner-wandb-release", daemon=True)
    thread.start()
    thread.join(_RELEASE_S)


@contextmanager
def survives(report: Callable[[str], None]) -> Iterator[None]:
    """Ends the block at any error of wandb and reports its reason, one line of at most 200 characters."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - wandb raises direct subclasses of Exception from private modules
        report(shorten(str(error), 200, placeholder=" ...") or type(error).__name__)
