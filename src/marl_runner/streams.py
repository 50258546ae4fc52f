"""Independent random streams, all derived from the one seed of a run.

Each use has its own stream, and sampling one for each agent, task and branch ("sample/0/17/2" is agent 0's second turn
in the run's 18th task after joint action 2; "eval/…", "update/0", "shuffle"), so that no use can shift another:
evaluating more often, adding an agent, or sampling more tasks at once leaves every other stream as it was.
"""

from __future__ import annotations

import hashlib


def derive_seed(seed: int, *names: str | int) -> int:
    """Returns a 63-bit seed for the named stream: the SHA-256 of seed and names, in the range torch accepts."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
