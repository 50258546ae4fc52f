"""Independent random streams, all derived from the one seed of a run.

Each use has its own stream ("sample/0", "eval/1", "update/0", "shuffle"), so that no use can shift another:
evaluating more often, or adding an agent, leaves every other stream as it was.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Returns a 63-bit seed for the named stream: the SHA-256 of seed and names, in the range torch accepts."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
