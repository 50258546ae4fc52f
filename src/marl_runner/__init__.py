"""marl-runner: fine-tune teams of language models with the multi-agent REINFORCE family.

The names below are loaded when first used, so that importing a part of the package never imports torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "MAGRPOConfig": "marl_runner.settings",
    "MAREINFORCEConfig": "marl_runner.settings",
    "MARLOOConfig": "marl_runner.settings",
    "MAReMaxConfig": "marl_runner.settings",
    "MAGRPOTrainer": "marl_runner.trainers.magrpo",
    "MAREINFORCETrainer": "marl_runner.trainers.magrpo",
    "MARLOOTrainer": "marl_runner.trainers.magrpo",
    "MAReMaxTrainer": "marl_runner.trainers.magrpo",
    "RewardProcessors": "marl_runner.rewards.processors",
    "register_reward": "marl_runner.rewards.registry",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'marl_runner' has no attribute '{name}'")
    return vars(importlib.import_module(_HOMES[name]))[name]


def __dir__() -> list[str]:
    return sorted(__all__)
