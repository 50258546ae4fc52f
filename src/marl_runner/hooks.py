"""User functions: loaded from a file or a module, and called with what they name.

Arguments are bound by NAME from the signature, once, when the run is built; a wrong signature is reported
then, and an exception raised by the function is never taken for one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from marl_runner.errors import ConfigError

FILE_MODULE = "marl_runner_hook_"
"""Begins the module name of a file that a hook was loaded from."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def hook_name(function: Callable[..., Any]) -> str:
    """A name for messages: of the function, of what a partial wraps, or of the object's class."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    named = inner if inspect.isroutine(inner) and not inspect.ismethoddescriptor(inner) else type(inner)
    if named.__module__.startswith(FILE_MODULE):
        return f"{named.__module__.removeprefix(FILE_MODULE)}.py:{named.__qualname__}"
    return f"{named.__module__}.{named.__qualname__}"


def raised(error: Exception) -> str:
    """What a hook raised, and where: "KeyError: 'lost' at rewards.py:12"."""
    frames = traceback.extract_tb(error.__traceback__)
    # The first frame is our call; without another the hook is not written in Python.
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {error}{place}"


def signature_of(function: Callable[..., Any], role: str) -> inspect.Signature:
    """The signature of a user function.

    Raises:
        ConfigError: It is not callable, or has no readable signature.
    """
    if not callable(function):
        raise ConfigError(f"{role} must be callable, got {function!r}")
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{role} {function!r} has no readable signature; wrap it in a def that names its arguments"
        ) from error


def accepted_context(signature: inspect.Signature, offered: Mapping[str, Any]) -> dict[str, Any]:
    """Of the offered keyword arguments, those that the function names, or all where it takes `**kwargs`."""
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    named = {p.name for p in signature.parameters.values() if p.kind is not inspect.Parameter.POSITIONAL_ONLY}
    return {name: value for name, value in offered.items() if takes_all or name in named}


def check_names(signature: inspect.Signature, offered: set[str], role: str, name: str) -> None:
    """Every parameter without a default must be one of `offered`.

    Raises:
        ConfigError: Naming the parameters that nobody fills.
    """
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    unknown = [
        p.name
        for p in signature.parameters.values()
        if p.default is inspect.Parameter.empty
        and p.kind not in variadic
        and (p.name not in offered or p.kind is inspect.Parameter.POSITIONAL_ONLY)
    ]
    if unknown:
        raise ConfigError(
            f"{role} {name} needs {', '.join(unknown)}, which is not offered; it may name {', '.join(sorted(offered))}"
        )


def load_function(spec: str, key: str) -> Callable[..., Any]:
    """Loads `path/to/file.py:name` or `package.module:name`.

    Args:
        spec: Where the function is.
        key: The configuration key it came from, for messages.

    Raises:
        ConfigError: The form is wrong, the file or module cannot be imported, or it has no such callable.
    """
    source, attribute = check_source(spec, key)
    try:
        if source.endswith(".py"):
            module = _load_file(Path(source).expanduser().resolve())
        else:
            module = importlib.import_module(source)
    except (Exception, SystemExit) as error:
        hint = path_hint(source) if isinstance(error, ModuleNotFoundError) and not source.endswith(".py") else ""
        reason = f"importing {source} raised {type(error).__name__}: {error}{hint}"
        raise ConfigError(f"{key}={spec}: {reason}") from error
    callables: dict[str, Callable[..., Any]] = {name: value for name, value in vars(module).items() if callable(value)}
    if attribute not in callables:
        names = ", ".join(sorted(name for name in callables if not name.startswith("_")))
        raise ConfigError(f"{key}={spec}: {source} has no function '{attribute}'; it has {names or 'none'}")
    return callables[attribute]


def check_source(spec: str, key: str) -> tuple[str, str]:
    """File or module, and name, of a function's address; nothing is imported.

    Raises:
        ConfigError: The form is wrong, or there is no such file.
    """
    source, _, attribute = spec.rpartition(":")
    if not source or not attribute:
        raise ConfigError(f"{key}={spec}: write path/to/file.py:function or package.module:function")
    if source.endswith(".py") and not Path(source).expanduser().is_file():
        raise ConfigError(f"{key}={spec}: no file {source} (looked in {Path.cwd()})")
    return source, attribute


def path_hint(address: str) -> str:
    """For messages: how a module in the working folder is found, which a console script does not look into."""
    top = address.partition(".")[0]
    is_here = Path(f"{top}.py").is_file() or Path(top).is_dir()
    return f"; {top} is in the working folder: set PYTHONPATH=." if is_here and top not in sys.modules else ""


@functools.cache
def _load_file(path: Path) -> ModuleType:
    # Once for each file, so that a reward and a transition of one file share what it holds.
    name = f"{FILE_MODULE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
