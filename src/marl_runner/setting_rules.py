"""Which values the settings may have, and how other ways of writing them are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any

from marl_runner.advantage_modes import ADVANTAGE_MODES
from marl_runner.errors import ConfigError
from marl_runner.joint_modes import JOINT_MODES
from marl_runner.types import AdvantageMode, JointMode

COMPAT = "comlrl-1.4"
ALIASES = {"align": "aligned", "crossed": "cross", "null": "none"}
"""Other words for a mode → the one that is kept."""

INTEGERS = {
    "num_agents": (1, False),
    "num_turns": (1, False),
    "num_train_epochs": (1, False),
    "num_generations": (2, False),
    "logging_steps": (1, False),
    "max_new_tokens": (1, False),
    "top_k": (1, True),
    "rollout_buffer_size": (1, False),
    "train_batch_size": (1, True),
    "eval_interval": (0, False),
    "eval_num_samples": (0, False),
    "eval_batch_size": (1, False),
    "seed": (0, False),
    "warmup_steps": (0, False),
    "max_rollout_rows": (1, False),
    "micro_batch_tokens": (1, True),
    "reward_num_workers": (1, False),
    "max_prompt_tokens": (1, True),
}
"""Whole number → its least value, and whether it may be None."""

NUMBERS = {
    "agent_learning_rate": (0, math.inf, True, False),
    "temperature": (0, math.inf, True, False),
    "top_p": (0, 1, True, False),
    "discount": (0, 1, False, False),
    "reference_kl_coef": (0, math.inf, False, False),
    "early_termination_threshold": (-math.inf, math.inf, False, True),
    "max_grad_norm": (0, math.inf, True, True),
    "weight_decay": (0, math.inf, False, False),
}
"""Number → its least and greatest value, whether the least is excluded, and whether it may be None."""

CHOICES = {
    "parallel_training": ("none", "mp"),
    "lr_scheduler": ("constant", "linear", "cosine"),
    "mixed_precision": ("none", "bf16"),
    "node_weighting": ("uniform", "objective"),
    "compat": (COMPAT,),
    "overlong_prompt": ("error", "drop", "truncate"),
    "nonfinite_reward": ("error", "abstain"),
}
"""Setting → the words it may be; compat may be None too."""

BOOLEANS = (
    "external_prompt_passthrough",
    "advantage_normalization",
    "reference_kl_enabled",
    "shuffle",
    "gradient_checkpointing",
)


def normalized(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are written in another way than they are kept: modes in other words, numbers of numpy."""
    kept: dict[str, Any] = {}
    for name in ("parallel_training", "joint_mode", "advantage_mode"):
        if isinstance(values[name], str):
            kept[name] = ALIASES.get(values[name].lower(), values[name].lower())
    if values["parallel_training"] is None:
        kept["parallel_training"] = "none"
    for name in INTEGERS:
        if isinstance(values[name], Integral) and not isinstance(values[name], int):
            kept[name] = int(values[name])
    for name in NUMBERS:
        if isinstance(values[name], Real) and not isinstance(values[name], (int, float)):
            kept[name] = float(values[name])
    if values["train_batch_size"] is None:
        kept["train_batch_size"] = values["rollout_buffer_size"]
    return kept


def check_values(values: Mapping[str, Any]) -> None:
    """Checks every setting for itself, and those that depend on each other.

    Raises:
        ConfigError: A value is out of its range.
    """
    for name, (least, optional) in INTEGERS.items():
        check_integer(name, values[name], least, optional)
    for name, limits in NUMBERS.items():
        check_number(name, values[name], *limits)
    for name, choices in CHOICES.items():
        if name != "compat" or values[name] is not None:
            check_choice(name, values[name], choices)
    for name in BOOLEANS:
        if not isinstance(values[name], bool):
            raise ConfigError(f"{name} must be true or false, got {values[name]!r}")
    check_modes(values)
    check_relations(values)


def check_integer(name: str, value: Any, least: int, optional: bool) -> None:
    """Raises ConfigError unless `value` is a whole number >= `least`, or None where that is allowed."""
    if optional and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        reason = " (the group's baseline compares several completions)" if name == "num_generations" else ""
        raise ConfigError(f"{name} must be an integer >= {least}{' or null' if optional else ''}{reason}, got {value}")


def check_number(name: str, value: Any, least: float, most: float, open_at_least: bool, optional: bool) -> None:
    """Raises ConfigError unless `value` is a finite number in its range, or None where that is allowed."""
    if optional and value is None:
        return
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < least or value > most or (open_at_least and value == least):
        bounds = f"{'> ' if open_at_least else '>= '}{least}" + (f" and <= {most}" if most != math.inf else "")
        what = "a number" if least == -math.inf else f"a number {bounds}"
        raise ConfigError(f"{name} must be {what}{' or null' if optional else ''}, got {value}")


def check_choice(name: str, value: object, choices: Sequence[str]) -> None:
    """Raises ConfigError, naming the choices and the nearest one, unless `value` is one of them."""
    if value in choices:
        return
    near = get_close_matches(str(value), choices, n=1)
    hint = f"; nearest: {near[0]}" if near else ""
    raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}{hint}")


def check_modes(values: Mapping[str, Any]) -> None:
    """Raises ConfigError unless the two modes are names, or objects that can do what a mode does."""
    for name, table, kind, parts in (
        ("joint_mode", JOINT_MODES, JointMode, "name, index, size and credit"),
        ("advantage_mode", ADVANTAGE_MODES, AdvantageMode, "name and __call__(returns_K)"),
    ):
        value = values[name]
        if isinstance(value, str):
            check_choice(name, value, tuple(table))
        elif not isinstance(value, kind):
            raise ConfigError(f"{name} must be one of {', '.join(table)}, or an object with {parts}, got {value!r}")


def check_relations(values: Mapping[str, Any]) -> None:
    """Raises ConfigError if one setting leaves no room for another."""
    rows, generations = values["max_rollout_rows"], values["num_generations"]
    if rows < generations:
        raise ConfigError(
            f"max_rollout_rows={rows} must be at least num_generations={generations}: "
            "the completions of one prompt are sampled together"
        )
    if values["parallel_training"] == "mp" and values["agent_devices"] is None:
        raise ConfigError(
            "parallel_training=mp needs agent_devices: one device, one per agent, or auto "
            f'(agent_devices=["cpu","cpu"] for {values["num_agents"]} agents on the CPU)'
        )


def check_devices(values: Mapping[str, Any], num_agents: int | None) -> None:
    """Raises ConfigError unless every list of devices has one entry or `num_agents`, where that is known."""
    for name in ("agent_devices", "reference_devices"):
        value = values[name]
        entries = [value] if isinstance(value, str) else value
        if entries is None:
            continue
        if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) for entry in entries):
            raise ConfigError(f"{name} must be a device, a list of devices or null, got {value}")
        if num_agents is not None and len(entries) not in (1, num_agents):
            raise ConfigError(f"{name} has {len(entries)} entries, needs 1 or num_agents={num_agents}: {value}")
