"""Measures marl-runner against comlrl 1.4.3, and TRL where it can do the job, and writes docs/performance.md.

    pip install -e ".[parity,bench,smollm2]" && python scripts/get_smollm2.py
    python scripts/benchmark.py --output docs/performance.md          (about an hour and a half, alone on two cores)
    python scripts/benchmark.py --jobs k4 --repetitions 3             (one row, to the screen)

Every measurement is a process of its own; the sides alternate, and a row is the median of its repetitions. Nothing
else should run beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from transformers import AutoModelForCausalLM

from benchmark_jobs import JOBS, Job, Measured
from benchmark_machine import GIGA, Machine, floor_seconds, measured_machine

HERE = Path(__file__).resolve().parent
SCALING = {
    "K": [{"num_generations": k} for k in (2, 4, 8)],
    "K, cross": [{"num_generations": k, "joint_mode": "cross"} for k in (2, 4)],
    "turns": [{"num_generations": 3, "num_turns": h} for h in (1, 2, 3, 4)],
    "turns, cross": [{"num_generations": 2, "num_turns": h, "joint_mode": "cross"} for h in (1, 2, 3)],
    "agents": [{"num_agents": n} for n in (1, 2, 4)],
    "agents, cross": [{"num_agents": n, "num_generations": 2, "joint_mode": "cross"} for n in (2, 3)],
    "prompt tokens": [{"prompt_tokens": p} for p in (16, 512)],
    "new tokens": [{"new_tokens": t} for t in (16, 64)],
}
"""What one axis at a time changes of the job SCALED."""
SCALED = Job(num_generations=4, new_tokens=32, num_tasks=1)


def main() -> None:
    """Measures what was asked for and prints or writes one page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", default=list(JOBS), help="rows of the first table")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=15, help="no new repetition of a job after this long")
    parser.add_argument("--parts", nargs="*", default=["jobs", "tiny", "scaling", "steps"])
    parser.add_argument("--model", type=Path, default=Path("~/.cache/marl-runner/SmolLM2-135M-Instruct").expanduser())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    machine = measured_machine(arguments.device, arguments.threads)
    parts = {"jobs": job_table, "tiny": tiny_table, "scaling": scaling_table, "steps": steps}
    page = [*head(machine)]
    for name in arguments.parts:
        for line in parts[name](arguments, machine):
            print(line, flush=True)
            page.append(line)
        page.append("")
    if arguments.output is not None:
        arguments.output.write_text("\n".join([*page, *notes(arguments.output)]).rstrip() + "\n")


def notes(page: Path) -> list[str]:
    """What a person wrote at the end of the last page, from its heading "Notes" on."""
    lines = page.read_text().splitlines() if page.is_file() else []
    return lines[lines.index("## Notes") :] if "## Notes" in lines else []


def head(machine: Machine) -> list[str]:
    """The page's opening: what was measured on."""
    return [
        "# Performance",
        "",
        "Written by `python scripts/benchmark.py --output docs/performance.md`. Every measurement is a process of its",
        "own, the sides alternate, seconds are medians of training alone, without loading. SmolLM2-135M-Instruct,",
        "every completion cut at the same length, prompts and rewards the same on all sides.",
        "",
        f"- machine: {machine.name}",
        f"- software: {machine.software}",
        f"- matrix product: {machine.float32_flops / GIGA:.0f} GFLOP/s in float32, "
        f"{machine.bfloat16_flops / GIGA:.1f} in bfloat16; memory read: {machine.read_bytes / GIGA:.1f} GB/s",
        "",
    ]


def run(side: str, job: Job, arguments: argparse.Namespace, epochs: int = 1) -> Measured:
    """One measurement, in a process of its own."""
    command = [sys.executable, str(HERE / "benchmark_jobs.py"), side, json.dumps(asdict(job)), str(arguments.model)]
    command += ["--device", arguments.device, "--threads", str(arguments.threads), "--epochs", str(epochs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed at {job}:\n{done.stderr[-2000:]}")
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def job_table(arguments: argparse.Namespace, machine: Machine) -> Iterator[str]:
    """Seconds of every job on every side that can do it, and the share of the machine's floor that ours reaches."""
    body, output_layer = weights_of(arguments.model)
    yield "## Against comlrl and TRL"
    yield ""
    yield "Two agents in all jobs but `one_agent`; `n` measurements of each side. Activations: peak memory of the"
    yield "training less the program, weights, gradients and AdamW's two states. The floor is what the job's matrix"
    yield "products and the reading of its weights take at the speeds above (`floor_seconds` in"
    yield "`scripts/benchmark_machine.py`)."
    yield ""
    yield (
        "| job | K | turns | prompt + new | n | comlrl s | TRL s | ours s | ratio | target | floor s | share of floor "
        "| activations, comlrl MiB | ours MiB | ratio |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    for name in arguments.jobs:
        job = JOBS[name]
        if job.mixed_precision == "bf16" and machine.bfloat16_flops < machine.float32_flops:
            yield f"| {name} | not run: this machine has no fast bfloat16 products |" + " |" * 13
            continue
        measured_of = measured_job(job, arguments)
        seconds = {side: median(each.seconds for each in all_n) for side, all_n in measured_of.items()}
        activations = {side: median(each.activation_mib for each in all_n) for side, all_n in measured_of.items()}
        floor = floor_seconds(job, body, output_layer, machine)
        cells = [
            name,
            str(job.num_generations),
            f"{job.num_turns} {job.joint_mode}" if job.num_turns > 1 else "1",
            f"{job.prompt_tokens} + {job.new_tokens}",
            str(len(measured_of["ours"])),
            f"{seconds['comlrl']:.1f}",
            f"{seconds['trl']:.1f}" if "trl" in seconds else "",
            f"{seconds['ours']:.1f}",
            f"{seconds['comlrl'] / seconds['ours']:.2f}",
            f"{job.target:g}" if job.target else "",
            f"{floor:.1f}",
            f"{100 * floor / seconds['ours']:.0f} %",
            f"{activations['comlrl']:.0f}",
            f"{activations['ours']:.0f}",
            f"{activations['ours'] / activations['comlrl']:.2f}",
        ]
        yield f"| {' | '.join(cells)} |"


def measured_job(job: Job, arguments: argparse.Namespace) -> dict[str, list[Measured]]:
    """Every side that can do the job, one after the other, again and again."""
    sides = ("ours", "comlrl", "trl") if job.num_agents == 1 and job.num_turns == 1 else ("ours", "comlrl")
    measured_of: dict[str, list[Measured]] = {side: [] for side in sides}
    started = time.monotonic()
    for _ in range(arguments.repetitions):
        for side in sides:
            measured_of[side].append(run(side, job, arguments))
        if time.monotonic() - started > 60 * arguments.minutes:
            break
    return measured_of


def weights_of(model: Path) -> tuple[int, int]:
    """Weights of a model's layers, and of its output layer."""
    loaded = AutoModelForCausalLM.from_pretrained(model)
    output_layer = loaded.get_output_embeddings().weight.numel()
    return sum(p.numel() for p in loaded.parameters()) - loaded.get_input_embeddings().weight.numel(), output_layer


def tiny_table(arguments: argparse.Namespace, machine: Machine) -> Iterator[str]:
    """The default run against a comlrl script of the same job, whole commands."""
    seconds: dict[str, list[float]] = {"ours": [], "comlrl": []}
    begun = time.monotonic()
    while len(seconds["ours"]) < arguments.repetitions and time.monotonic() - begun < 60 * arguments.minutes:
        for side in seconds:
            with tempfile.TemporaryDirectory() as folder:
                ours = [str(Path(sys.executable).with_name("marl-train")), f"hydra.run.dir={folder}/run"]
                theirs = [sys.executable, str(HERE / "benchmark_tiny.py"), f"{folder}/run"]
                started = time.perf_counter()
                subprocess.run(
                    ours if side == "ours" else theirs,
                    check=True,
                    capture_output=True,
                    env={**os.environ, "OMP_NUM_THREADS": str(arguments.threads)},
                )
                seconds[side].append(time.perf_counter() - started)
    theirs_s, ours_s = median(seconds["comlrl"]), median(seconds["ours"])
    yield "## The default run, whole command"
    yield ""
    yield "`marl-train` against `scripts/benchmark_tiny.py`, the same models, data, settings and evaluations by comlrl."
    yield ""
    yield "| comlrl s | ours s | ratio |"
    yield "|---|---|---|"
    yield f"| {theirs_s:.1f} | {ours_s:.1f} | {theirs_s / ours_s:.2f} |"


def scaling_table(arguments: argparse.Namespace, machine: Machine) -> Iterator[str]:
    """Our time and memory as one axis grows."""
    yield "## Scaling"
    yield ""
    yield "Ours, one measurement each."
    yield f"One axis at a time of {SCALED.num_agents} agents, K={SCALED.num_generations}, 1 turn,"
    yield f"{SCALED.prompt_tokens} prompt and {SCALED.new_tokens} new tokens, one prompt."
    yield ""
    yield "| axis | value | nodes | s | ms per trained token | peak MiB |"
    yield "|---|---|---|---|---|---|"
    for axis, changes in SCALING.items():
        for change in changes:
            job = replace(SCALED, **change)
            measured = run("ours", job, arguments)
            value = ", ".join(f"{name}={value}" for name, value in change.items())
            yield (
                f"| {axis} | {value} | {job.num_nodes} | {measured.seconds:.1f} | "
                f"{1000 * measured.seconds / job.sampled_tokens:.2f} | {measured.peak_mib:.0f} |"
            )


def steps(arguments: argparse.Namespace, machine: Machine) -> Iterator[str]:
    """Peak memory after few and after 50 updates."""
    job = replace(SCALED, num_generations=2, new_tokens=16)
    few, many = (run("ours", job, arguments, epochs=epochs).peak_mib for epochs in (5, 50))
    yield "## Memory over steps"
    yield ""
    yield f"Peak after 5 updates of each agent {few:.0f} MiB, after 50 {many:.0f} MiB."


if __name__ == "__main__":
    main()
