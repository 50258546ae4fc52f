"""How the C library hands out memory for tensors on a CPU."""

from __future__ import annotations

import ctypes
import os
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX = -1, -2, -4, -8
"""Parameters of mallopt(3)."""


def tune_allocator() -> None:
    """Makes glibc keep the memory of freed tensors for the next ones, and torch ask Linux for huge pages.

    By default every tensor over 32 MiB is given back to the kernel when it is freed, and the next one is zeroed page
    by page again, under a lock that all threads of the process share: a quarter of the time of an update. Pages of
    2 MiB instead of 4 KiB save a tenth of what is left. To be called before the first tensor is made; where the C
    library or the kernel is another, nothing changes.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 64 * 2**20), (M_ARENA_MAX, 1)):
        mallopt(parameter, value)
