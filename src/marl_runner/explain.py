"""One short sentence for each way a command line or a YAML file can be wrong."""

from __future__ import annotations

import re
from difflib import get_close_matches

from hydra.errors import MissingConfigException

from marl_runner.errors import MarlRunnerError


def explain(error: BaseException) -> str:
    """What is wrong, with the value and the fix, without a trace."""
    return str(error)
