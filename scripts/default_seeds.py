"""Trains the default team once per seed and prints the table of docs/default_team.md.

    python scripts/default_seeds.py --output docs/default_team.md

Every run is the whole `marl-train` command in a process of its own, two at a time, timed from its start to its
exit; one alone is faster. The reward is the mean over a training event of `logging_steps` env steps: the first and
the last.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TARGET_REWARD = 0.8
TARGET_SECONDS = 90.0


def main() -> int:
    """Runs the seeds, writes the table, and exits with 1 when fewer than nine in ten reach the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="seeds 0 … N-1 (default 10)")
    parser.add_argument("--output", type=Path, default=None, help="file for the table; also printed")
    options = parser.parse_args()
    with ThreadPoolExecutor(max_workers=2) as pool:
        rows = list(pool.map(train, range(options.seeds)))
    text = table(rows)
    print(text)
    if options.output is not None:
        options.output.write_text(text)
    reached = sum(row["end"] >= TARGET_REWARD and row["seconds"] <= TARGET_SECONDS for row in rows)
    return 0 if reached >= 0.9 * len(rows) else 1


def train(seed: int) -> dict[str, float]:
    """One run of the default command: seconds, rewards at start and end, and the final evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "marl-train"), f"seed={seed}", f"hydra.run.dir={folder}/run"]
        started = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        events = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().split("\n") if line]
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
    rewards = [event["turn_1/reward_mean"] for event in events if event["kind"] == "train"]
    print(f"seed {seed}: {rewards[0]:.3f} -> {rewards[-1]:.3f} in {seconds:.0f} s", file=sys.stderr)
    return {
        "seed": seed,
        "start": rewards[0],
        "end": rewards[-1],
        "evaluation": summary["objective"],
        "seconds": seconds,
    }


def table(rows: list[dict[str, float]]) -> str:
    """The page, in Markdown."""
    reached = sum(row["end"] >= TARGET_REWARD for row in rows)
    lines = [
        "# The default team over seeds",
        "",
        "Made by `python scripts/default_seeds.py --output docs/default_team.md` on two CPU cores. Each row is one",
        "`marl-train seed=N`, two at a time: the mean reward of the first and of the last training event, the final",
        "evaluation's mean reward, and the seconds of the whole command, start of Python included.",
        "",
        "| seed | reward at start | reward at end | final evaluation | seconds |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        rewards = " | ".join(f"{row[name]:.3f}" for name in ("start", "end", "evaluation"))
        lines.append(f"| {row['seed']} | {rewards} | {row['seconds']:.0f} |")
    slowest = max(row["seconds"] for row in rows)
    closing = f"{reached} of {len(rows)} seeds end at {TARGET_REWARD} or more; the slowest took {slowest:.0f} s."
    lines += ["", closing, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
