"""How many completions are scored at once: as many as a budget of tokens allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from marl_runner.policies.base import Policy
from marl_runner.types import Row


def micro_batches(policy: Policy, rows: Sequence[Row], max_tokens: int) -> Iterator[Sequence[Row]]:
    """Cuts the rows, in their order, into the fewest parts of about equal size that compute at most `max_tokens` each.

    What two rows take is always allowed, so that completions of one long prompt can share it.
    """
    if not rows:
        return
    most = max(max_tokens, 2 * max(policy.num_scored_tokens([row]) for row in rows))
    num_parts = next(
        num_parts
        for num_parts in range(1, len(rows) + 1)
        if num_parts == len(rows) or all(policy.num_scored_tokens(part) <= most for part in divided(rows, num_parts))
    )
    yield from divided(rows, num_parts)


def divided(rows: Sequence[Row], num_parts: int) -> list[Sequence[Row]]:
    """The rows in parts whose sizes differ by one at most."""
    size, longer = divmod(len(rows), num_parts)
    starts = [part * size + min(part, longer) for part in range(num_parts + 1)]
    return [rows[start:end] for start, end in itertools.pairwise(starts)]
