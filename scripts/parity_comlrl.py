"""Compares every weight after training with comlrl 1.4.3 and with `compat="comlrl-1.4"`, and prints docs/parity.md.

    pip install -e ".[parity]"
    python scripts/parity_comlrl.py                            # the reduced grid
    python scripts/parity_comlrl.py --full --output docs/parity.md

Exits with 1 when a case misses the tolerance, or when a control, in which our side alone is changed, does not.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from parity_training import Case, Comparison, compare, initial_models

TOLERANCE = 1e-6
AXES: dict[str, tuple[Any, ...]] = {
    "advantage_mode": ("mean", "raw", "rloo", "max"),
    "advantage_normalization": (True, False),
    "joint_mode": ("aligned", "cross"),
    "num_turns": (1, 2, 3),
    "rollout_buffer_size": (1, 2, 3),
    "train_batch_size": (None, 1, 2),
    "reference_kl_enabled": (False, True),
    "discount": (1.0, 0.9),
    "early_termination_threshold": (None, -0.2),
}
ROW_AXES = ("advantage_mode", "advantage_normalization", "joint_mode", "num_turns")
"""The axes that make one row of the table."""
ONE_TOKEN = tuple(
    Case(joint_mode=joint_mode, num_turns=num_turns, max_new_tokens=1)
    for joint_mode, num_turns in (("aligned", 1), ("cross", 2))
)
"""The reference scores no token of a completion of one token, and so takes steps without any gradient."""
ABOUT = (
    """
    Two agents, float32 Llamas of one layer with different weights, are trained by comlrl and, from the same weights,
    with `compat=comlrl-1.4`: on the same prescribed completions of four tokens, rewards and transition, with equally
    seeded shuffles, for two epochs at a learning rate of 1e-3. A case's difference is the largest over all tensors of
    both agents of max|ours − theirs| / max|theirs|; its movement is the same measure between theirs before and after
    training. A case also misses when the sides shuffle different samples or take different numbers of optimiser steps.
    """,
    """
    The cases of a row differ in `rollout_buffer_size` (1, 2, 3), `train_batch_size` (null, 1, 2), the reference KL
    (off, on with coefficient 0.5), `discount` (1.0, 0.9; both sides ignore it) and `early_termination_threshold`
    (null, -0.2, which ends some branches and not others).
    """,
    """
    The rewards are multiples of 1/8 from -4 to 4, and no group's returns are all equal. Without the reference KL any
    other rewards agree as well (tests/test_parity.py has constant, tied and large ones). With it, a group whose
    returns are all equal is trained on the rounding errors of a penalty that is 0, which are not reproduced
    (docs/differences.md, row 31).
    """,
)
TABLE_HEAD = (
    "| advantage mode | normalised | joint mode | turns | cases | worst difference | least movement |",
    "|---|---|---|---|---|---|---|",
)
CONTROL = Case(advantage_normalization=False, rollout_buffer_size=3, train_batch_size=1)
CONTROLS: tuple[dict[str, Any], ...] = (
    {"compat": None},
    {"advantage_mode": "max"},
    {"advantage_normalization": True},
    {"joint_mode": "cross"},
    {"num_turns": 1},
    {"rollout_buffer_size": 2},
    {"train_batch_size": 2},
    {"reference_kl_enabled": True},
    {"early_termination_threshold": -0.2},
    {"weight_decay": 0.0},
    {"agent_learning_rate": 1.001e-3},
)
"""Settings of our side alone, each of which must move it away from the reference's CONTROL."""


def main() -> int:
    """Runs a grid and the controls, writes the page, and exits with 1 on a miss."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="every combination instead of the reduced grid")
    parser.add_argument("--output", type=Path, default=None, help="file for the page; also printed")
    options = parser.parse_args()
    started = time.monotonic()
    grid = full_grid() if options.full else reduced_grid()
    results = measure([*grid, *ONE_TOKEN])
    controls = measure_controls()
    text = page(results, controls, "--full " if options.full else "", time.monotonic() - started)
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    misses = [result for result in results if missed(result)]
    for result in misses:
        print(f"MISS {result}", file=sys.stderr)
    blind = [change for change, difference in controls if not difference > TOLERANCE]
    for change in blind:
        print(f"NO DIFFERENCE from {change}", file=sys.stderr)
    return 1 if misses or blind else 0


def full_grid() -> list[Case]:
    """Every combination of every axis, without those that cannot differ.

    A `train_batch_size` that is not less than the buffer makes one minibatch, as null does; a single turn has nothing
    to discount and no branch to end. The reduced grid has such cases too.
    """
    cases = [Case(*values) for values in itertools.product(*AXES.values())]
    return list(dict.fromkeys(plainest(case) for case in cases))


def plainest(case: Case) -> Case:
    """The case with every setting that has nothing to act on at its first value."""
    if case.train_batch_size is not None and case.train_batch_size >= case.rollout_buffer_size:
        case = replace(case, train_batch_size=None)
    if case.num_turns == 1:
        case = replace(case, discount=1.0, early_termination_threshold=None)
    return case


def reduced_grid() -> list[Case]:
    """Every row of the table, and every combination of the other axes dealt over the rows."""
    rows = list(itertools.product(*(AXES[name] for name in ROW_AXES)))
    others = list(itertools.product(*(values for name, values in AXES.items() if name not in ROW_AXES)))
    random.Random(0).shuffle(others)
    return [Case(*rows[index % len(rows)], *values) for index, values in enumerate(others)]


def measure(cases: Sequence[Case]) -> list[Comparison]:
    """Compares every case, telling its progress."""
    models, results = initial_models(), []
    for number, case in enumerate(cases, start=1):
        results.append(compare(models, case))
        if number % 20 == 0 or number == len(cases):
            worst = max(result.difference for result in results)
            num_misses = sum(missed(result) for result in results)
            print(f"{number}/{len(cases)}: worst {worst:.1e}, {num_misses} missed", file=sys.stderr, flush=True)
    return results


def measure_controls() -> list[tuple[str, float]]:
    """What was changed on our side alone, and the difference that made."""
    models = initial_models()
    return [
        (", ".join(f"{name}={value}" for name, value in changes.items()), compare(models, CONTROL, changes).difference)
        for changes in CONTROLS
    ]


def missed(result: Comparison) -> bool:
    """True when the sides do not agree; without a gradient they must agree bit for bit."""
    if result.case.max_new_tokens == 1:
        return not result.same_work or result.difference != 0 or result.movement != 0
    return not result.same_work or not result.difference <= TOLERANCE


def page(results: Sequence[Comparison], controls: Sequence[tuple[str, float]], option: str, seconds: float) -> str:
    """docs/parity.md."""
    num_agreed = sum(not missed(result) for result in results)
    worst = max(result.difference for result in results)
    parts = [
        "# Parity with CoMLRL 1.4.3",
        paragraph(f"""
            Made by `python scripts/parity_comlrl.py {option}--output docs/parity.md` on one CPU thread in
            {seconds / 60:.1f} minutes; comlrl comes with `pip install -e ".[parity]"`."""),
        paragraph(f"""
            **{num_agreed} of {len(results)} cases agree within {TOLERANCE:.0e};
            the worst difference is {worst:.1e}.**"""),
        *map(paragraph, ABOUT),
        "\n".join([*TABLE_HEAD, *table_rows(results)]),
        paragraph(f"""
            The last {len(ONE_TOKEN)} rows have completions of one token. The reference does not score it: no weight
            has a gradient, AdamW skips them all, weight decay included, and both sides must leave every bit as it
            was."""),
        "## Controls",
        paragraph(f"""
            The comparison can fail: one setting is changed on our side only, against the reference's
            {shown(CONTROL)}."""),
        "\n".join(
            [
                "| changed here only | difference |",
                "|---|---|",
                *(f"| `{name}` | {size:.1e} |" for name, size in controls),
            ]
        ),
    ]
    return "\n\n".join(parts) + "\n"


def paragraph(text: str) -> str:
    """Text wrapped as the other pages are."""
    return textwrap.fill(" ".join(text.split()), width=118, break_long_words=False, break_on_hyphens=False)


def table_rows(results: Sequence[Comparison]) -> list[str]:
    """One line per row of the table, in the order of the axes."""
    by_row: dict[tuple[Any, ...], list[Comparison]] = {}
    for result in results:
        key = tuple(vars(result.case)[axis] for axis in ("max_new_tokens", *ROW_AXES))
        by_row.setdefault(key, []).append(result)
    lines = []
    for num_tokens, mode, normalised, joint_mode, num_turns in sorted(by_row, key=place):
        group = by_row[num_tokens, mode, normalised, joint_mode, num_turns]
        worst, least = max(result.difference for result in group), min(result.movement for result in group)
        lines.append(
            f"| {mode} | {'yes' if normalised else 'no'} | {joint_mode} | {num_turns} "
            f"| {len(group)} | {worst:.1e} | {least:.1e} |"
        )
    return lines


def place(row: tuple[Any, ...]) -> tuple[int, ...]:
    """Where a row stands in the table: in the order of the axes, long completions before those of one token."""
    num_tokens, *values = row
    return (-num_tokens, *(AXES[axis].index(value) for axis, value in zip(ROW_AXES, values, strict=True)))


def shown(case: Case) -> str:
    """The settings of a case that are not a Case's defaults."""
    changed = {name: value for name, value in vars(case).items() if value != vars(Case())[name]}
    return ", ".join(f"`{name}={value}`" for name, value in changed.items())


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("marl_runner").setLevel(logging.ERROR)
    sys.exit(main())
