"""A transition from a file or a module of the user's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from marl_runner.hooks import load_function


def python_transition(function: str) -> Callable[..., Any]:
    """Loads the transition `function`.

    Args:
        function: `path/to/file.py:name` or `package.module:name`.

    Raises:
        ConfigError: It cannot be loaded.
    """
    return load_function(function, key="transition.function")
