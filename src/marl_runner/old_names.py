"""Argument names of older CoMLRL versions: each is taken with one DeprecationWarning that says its new name."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, ParamSpec

from marl_runner.errors import ArgumentError, ConfigError

P = ParamSpec("P")

CONFIG_NAMES = {
    "learning_rate": "agent_learning_rate",
    "termination_threshold": "early_termination_threshold",
    "normalize_advantage": "advantage_normalization",
    "save_steps": None,
    "per_device_train_batch_size": None,
}
"""Old name of a setting → its name now; None where it has no effect any more."""

TRAINER_NAMES = {"model": "agent_model", "reward_funcs": "reward_func", "dataset_type": None}
"""Old name of a trainer's argument → its name now; None where it has no effect any more."""


def takes_old_names(names: Mapping[str, str | None]) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Decorates a constructor so that it takes the old names as keywords too.

    They stand at the end of its signature, so that a script that filters its arguments by it loses none.

    Args:
        names: Old name → new name, or None for a name that is taken and not used.

    Raises:
        ConfigError: On a call, when old and new name are both given, or the value cannot mean what it did.
        ArgumentError: On a call with a keyword that is neither, naming the nearest.
    """

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        shown = inspect.signature(init)

        @functools.wraps(init)
        def renaming(*args: P.args, **keywords: P.kwargs) -> None:
            current = renamed(dict(keywords), names)
            check_known(current, list(shown.parameters), init.__qualname__.partition(".")[0])
            init(*args, **current)

        old = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in names]
        vars(renaming)["__signature__"] = shown.replace(parameters=[*shown.parameters.values(), *old])
        return renaming

    return decorate


def renamed(keywords: Mapping[str, Any], names: Mapping[str, str | None]) -> dict[str, Any]:
    """Keywords under their new names; every old one is warned about."""
    current = dict(keywords)
    for old, new in names.items():
        if old not in current:
            continue
        value = as_now(old, current.pop(old))
        if new in current:
            raise ConfigError(f"{old} is the old name of {new}, and both were given: keep {new}")
        said = "has no effect any more: remove it" if new is None else f"is called {new} now"
        # Through the constructor that takes old names, to its caller.
        warnings.warn(f"{old} {said}", DeprecationWarning, stacklevel=3)
        if new is not None:
            current[new] = value
    return current


def check_known(keywords: Mapping[str, Any], known: Sequence[str], owner: str) -> None:
    """Raises ArgumentError for a keyword that a constructor does not take, naming the nearest that it does."""
    for name in keywords:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"nearest: {near[0]}" if near else "remove it"
            raise ArgumentError(f"{owner} takes no {name}; {hint}")


def as_now(old: str, value: Any) -> Any:
    """The value of an old name as the new one takes it.

    Raises:
        ConfigError: Several reward functions, or a batch of several tasks.
    """
    if old == "per_device_train_batch_size" and value != 1:
        raise ConfigError(
            f"per_device_train_batch_size must be 1, got {value}: tasks are rolled out one at a time; "
            "rollout_buffer_size and train_batch_size say how many node samples an update takes"
        )
    if old == "reward_funcs" and isinstance(value, (list, tuple)):
        if len(value) != 1:
            raise ConfigError(f"reward_funcs has {len(value)} functions: pass one reward_func that combines them")
        return value[0]
    return value
