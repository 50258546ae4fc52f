"""The checker's handle of a program process: started for one program, killed with everything it started."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from marl_runner.sandbox.endings import LostError, RefusedError, raised_of
from marl_runner.sandbox.frames import TooLongError, WatchedPipe
from marl_runner.sandbox.jobs import Limits
from marl_runner.sandbox.plain import dumped, rebuilt
from marl_runner.sandbox.processes import descendants

START = """
import sys, types
for name, folder in (("marl_runner", sys.argv[1]), ("marl_runner.sandbox", sys.argv[1] + "/sandbox")):
    package = types.ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package
"""
"""Makes the package importable without running its `__init__`: a process of few milliseconds, without site-packages."""
PACKAGE = str(Path(__file__).resolve().parent.parent)
INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages, which may hold the solutions of a data set."""
MOST_FILES = 1000
"""Files that a program may leave in its working folder."""


class Program:
    """A program process.

    Args:
        source: The generated program.
        limits: What it may use.
        layers: What confines it, see `confinement.LAYERS`.
        scratch: Folder in which its throw-away working folder is made.
        watch: Called every few milliseconds while it is waited for; may raise.
        deadline: Until when its source must have run, in seconds of `time.monotonic`.

    Raises:
        LostError: Its source ends the process, takes too long or too much.
        RefusedError: The kernel refused a layer.
        Exception: Its source raises; Python's own exceptions as themselves.
    """

    def __init__(
        self,
        source: str,
        limits: Limits,
        layers: Sequence[str],
        scratch: Path,
        watch: Callable[[], None],
        deadline: float,
    ) -> None:
        self._limits = limits
        self._watch_more = watch
        self.folder = Path(tempfile.mkdtemp(dir=scratch))
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        self._pipe = WatchedPipe(ours_in, ours_out, round(limits.output_kib * 1024), self._watch)
        self.alive = True
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-s", "-S", "-P", "-c", start_of("inside"), PACKAGE, str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=self.folder,
                env=environment(self.folder),
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        setup = {"program": source, "limits": dataclasses.asdict(limits), "layers": layers, "readable": readable()}
        self._exchange(json.dumps(setup).encode("ascii"), deadline)

    def call(self, name: str, args: Sequence[Any], kwargs: dict[str, Any], deadline: float) -> Any:
        """What a function of the program returns.

        Args:
            name: The function.
            args: Plain values.
            kwargs: Plain values.
            deadline: In seconds of `time.monotonic`.

        Raises:
            LostError: The process has ended, or was killed because it took too long or too much.
            Exception: What the function raised; Python's own exceptions as themselves.
        """
        return self._exchange(dumped([name, list(args), kwargs]), deadline)

    def close(self) -> None:
        """Kills the process and removes its folder; see `reap_orphans` for what it may have started."""
        self.alive = False
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for descriptor in (self._pipe.reading, self._pipe.writing):
            os.close(descriptor)
        remove(self.folder)

    def _exchange(self, message: bytes, deadline: float) -> Any:
        try:
            self._pipe.send(message, deadline)
            data = self._pipe.receive(deadline)
            answer = None if data is None else parsed(data)
        except TimeoutError:
            raise self._lost("timeout", "took too long") from None
        except TooLongError as error:
            raise self._lost("output", str(error)) from None
        except (ValueError, RecursionError) as error:
            raise self._lost("output", f"sent no plain value: {error}") from None
        except BrokenPipeError:
            answer = None
        except LostError as lost:
            raise self._lost(lost.kind, str(lost)) from None
        if answer is None:
            raise self._lost(*self._death())
        if "refused" in answer:
            raise RefusedError(answer["refused"])
        if "raised" in answer:
            raise raised_of(str(answer["raised"].get("kind")), str(answer["raised"].get("message")))
        return answer["returned"]

    def _lost(self, kind: str, message: str) -> LostError:
        self.close()
        return LostError(kind, message)

    def _death(self) -> tuple[str, str]:
        """Kind and message for a process that has closed its pipe."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return "exit", "closed its pipe"
        if code >= 0:
            return "exit", f"ended the process with exit code {code}"
        name = signal.Signals(-code).name
        return ("timeout", "took too much CPU time") if name in ("SIGXCPU", "SIGKILL") else ("exit", f"ended by {name}")

    def _watch(self) -> None:
        """Looks at what no limit of the kernel covers: the folder as a whole, and other processes."""
        self._watch_more()
        files = sizes(self.folder)
        if len(files) > MOST_FILES or sum(files) > self._limits.disk_mib * 2**20:
            raise LostError("disk", f"wrote more than {self._limits.disk_mib:g} MiB or {MOST_FILES} files")
        if descendants(self._process.pid):
            raise LostError("exit", "started a process")


def start_of(module: str) -> str:
    """What an interpreter runs that is to be one of the sandbox's own processes."""
    return f"{START}\nfrom marl_runner.sandbox.{module} import main\nmain()"


def environment(folder: Path) -> dict[str, str]:
    """All that a program sees of its surroundings; its hashes are the same every time."""
    places = dict.fromkeys(("HOME", "TMPDIR"), str(folder))
    return {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", **places}


@functools.cache
def readable() -> list[str]:
    """The standard library, without the packages installed beside it, and the libraries that it is linked to."""
    paths = ["/dev/null", "/dev/urandom", "/dev/zero", "/etc/ld.so.cache", "/usr/share/zoneinfo"]
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}:
        paths += [entry.path for entry in os.scandir(folder) if entry.name not in INSTALLED]
    triplet = sysconfig.get_config_var("MULTIARCH")
    paths += [f"{root}/{triplet}" if triplet else f"{root}64" for root in ("/lib", "/usr/lib")]
    paths += ["/lib64", "/usr/lib64"]
    return paths + [str(path) for path in Path(sys.base_prefix, "lib").glob("*.so*")]


def parsed(data: bytes) -> dict[str, Any]:
    """An answer of a program, which may have written it itself.

    Raises:
        ValueError: It is no answer.
    """
    answer = json.loads(data)
    if not isinstance(answer, dict) or len(answer) != 1:
        raise ValueError("not an answer")
    if "returned" in answer:
        return {"returned": rebuilt(answer["returned"])}
    if "refused" in answer or isinstance(answer.get("raised"), dict):
        return answer
    raise ValueError("not an answer")


def sizes(folder: Path) -> list[int]:
    """Bytes of each file in a folder, in which there are no folders; what vanishes meanwhile is left out."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    found.append(entry.stat(follow_symlinks=False).st_size)
                except FileNotFoundError:
                    continue
    except FileNotFoundError:
        return []
    return found


def remove(folder: Path) -> None:
    """Removes a folder, however deep a program has made it."""
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        return
    except (OSError, RecursionError):
        subprocess.run(["rm", "-rf", "--", str(folder)], check=True)
