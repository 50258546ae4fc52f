"""How much memory a run has taken at most."""

from __future__ import annotations

import resource
import sys
from collections.abc import Collection

import torch

from marl_runner.types import Metrics

MEBIBYTE = 2**20


def memory_metrics(devices: Collection[str]) -> Metrics:
    """Highest memory since the process began, in MiB: resident memory, and what each GPU had allocated."""
    unit = 1 if sys.platform == "darwin" else 1024  # bytes on macOS, KiB on Linux
    metrics = {"memory/peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MEBIBYTE}
    for device in sorted(devices):
        if device.startswith("cuda"):
            name = device.replace(":", "_")
            metrics[f"memory/{name}_peak_mib"] = torch.cuda.max_memory_allocated(device) / MEBIBYTE
    return metrics
