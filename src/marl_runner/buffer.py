"""When an agent updates: one rollout buffer per agent."""

from __future__ import annotations

from marl_runner.types import Sample


class RolloutBuffer:
    """Collects one agent's samples, in env-step order, until there are enough to update on.

    Args:
        size: Samples that make the buffer ready (`rollout_buffer_size`), >= 1.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._samples: list[Sample] = []

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def ready(self) -> bool:
        """True once the buffer holds at least `size` samples."""
        return len(self._samples) >= self.size

    def add(self, sample: Sample) -> None:
        """Appends one sample."""
        self._samples.append(sample)

    def drain(self) -> list[Sample]:
        """Returns all samples and leaves the buffer empty."""
        samples, self._samples = self._samples, []
        return samples
