"""No transition: for runs of one turn."""

from __future__ import annotations


def no_transition() -> None:
    """Returns None, which the trainer accepts only with `num_turns=1`."""
    return None
