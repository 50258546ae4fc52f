"""Runs generated code against tests where it can do no harm and cannot forge its score.

Three processes, each knowing less than the one before:

    trainer ── Sandbox (pool.py) ── worker (worker.py, checker.py) ── program (inside.py, confinement.py)

A worker holds the tests and runs them; calls of the tested function go to a program process, which holds the generated
code alone and answers with plain values. One program process, one throw-away folder: both are gone after the job.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Sandbox": "marl_runner.sandbox.pool",
    "Limits": "marl_runner.sandbox.jobs",
    "Job": "marl_runner.sandbox.jobs",
    "Outcome": "marl_runner.sandbox.jobs",
    "TestOutcome": "marl_runner.sandbox.jobs",
}

__all__ = ["Job", "Limits", "Outcome", "Sandbox", "TestOutcome"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'marl_runner.sandbox' has no attribute '{name}'")
    return vars(importlib.import_module(_HOMES[name]))[name]
