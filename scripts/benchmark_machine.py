"""What the machine can do at most, and how long a job takes at least by that."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmark_jobs import Job

GIGA = 1e9


@dataclass(frozen=True)
class Machine:
    """Measured limits.

    Attributes:
        name: Processor and cores, or GPU.
        software: Versions.
        float32_flops: Operations per second of a float32 matrix product of 2048 x 2048.
        bfloat16_flops: The same in bfloat16.
        read_bytes: Bytes of memory read per second.
    """

    name: str
    software: str
    float32_flops: float
    bfloat16_flops: float
    read_bytes: float


def measured_machine(device: str, threads: int) -> Machine:
    """Measures the machine with as many threads as the jobs get."""
    torch.set_num_threads(threads)
    large = torch.empty(2**27, dtype=torch.float32, device=device).fill_(1.0)
    read = large.nbytes / seconds_of(lambda: large.sum(), device)
    return Machine(
        machine_name(device, threads), software(), flops(torch.float32, device), flops(torch.bfloat16, device), read
    )


def flops(dtype: torch.dtype, device: str, size: int = 2048) -> float:
    """Operations per second of a square matrix product; of a smaller one where that takes over a second."""
    one = torch.ones(size, size, dtype=dtype, device=device)
    taken = seconds_of(lambda: one @ one, device)
    if taken > 1 and size > 512:
        return flops(dtype, device, size // 2)
    return 2 * size**3 / taken


def seconds_of(work: Callable[[], object], device: str, repetitions: int = 20) -> float:
    """Least seconds of some work, after one run that does not count: a limit, though others use the machine too."""
    taken = []
    for _ in range(repetitions + 1):
        started = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - started)
        if taken[-1] > 5:
            return taken[-1]
    return min(taken[1:])


def machine_name(device: str, threads: int) -> str:
    """The GPU's name, or the processor's with the threads used of it."""
    if device != "cpu":
        return str(torch.cuda.get_device_name(device))
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.backends.cpu.get_cpu_capability()}, {threads} threads"
    )


def software() -> str:
    """Versions of what is compared and of what it runs on."""
    found = [f"Python {platform.python_version()}"]
    for package in ("torch", "transformers", "comlrl", "trl"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def floor_seconds(job: Job, body: int, head: int, machine: Machine) -> float:
    """The least a job can take: its matrix products at full speed, or its weights read once per token step.

    Updates: 6 operations per weight and token, the prompt counted once for all its completions, the output layer for
    completions alone. Sampling: per step and agent, the slower of reading all weights once and of 2 operations per
    weight and row; all nodes of a turn are one batch.

    Args:
        job: The job.
        body: Weights of the layers, embedding left out.
        head: Weights of the output layer.
        machine: Its limits.
    """
    rate = machine.bfloat16_flops if job.mixed_precision == "bf16" else machine.float32_flops
    width = 2 if job.mixed_precision == "bf16" else 4
    rows_by_turn = [job.num_tasks * job.branching**turn * job.num_generations for turn in range(job.num_turns)]
    trained = sum(rows_by_turn) * job.new_tokens
    prompts = sum(rows_by_turn) // job.num_generations * job.prompt_tokens
    update = 6 * (body * (trained + prompts) + head * trained) / rate
    step = [max((body + head) * width / machine.read_bytes, 2 * (body + head) * rows / rate) for rows in rows_by_turn]
    return job.num_agents * (update + job.new_tokens * sum(step))
