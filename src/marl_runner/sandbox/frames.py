"""Messages over a pipe: four bytes of length, then so many bytes."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable

HEAD = struct.Struct("!I")
TICK_MS = 20
"""How often what else has to be watched is looked at while a message is awaited."""
CHUNK = 65536


class TooLongError(Exception):
    """A message is longer than allowed."""


def read_frame(descriptor: int) -> bytes | None:
    """The next message, however long it takes; None at the end of the pipe."""
    head = _read_exactly(descriptor, HEAD.size)
    return None if head is None else _read_exactly(descriptor, HEAD.unpack(head)[0])


def _read_exactly(descriptor: int, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        part = os.read(descriptor, min(size - len(data), CHUNK))
        if not part:
            return None
        data += part
    return bytes(data)


def write_frame(descriptor: int, data: bytes) -> None:
    """Writes one message, waiting while the pipe is full."""
    view = memoryview(HEAD.pack(len(data)) + data)
    while view:
        view = view[os.write(descriptor, view) :]


class WatchedPipe:
    """A pipe to a process that is not trusted: nothing waits for it beyond a deadline.

    Args:
        reading: Descriptor of its answers.
        writing: Descriptor of what it is sent.
        limit: Most bytes of one answer.
        watch: Called every few milliseconds while waiting; may raise.
    """

    def __init__(self, reading: int, writing: int, limit: int, watch: Callable[[], None]) -> None:
        self.reading = reading
        self.writing = writing
        self._limit = limit
        self._watch = watch
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)

    def send(self, data: bytes, deadline: float) -> None:
        """Writes one message.

        Args:
            data: The message.
            deadline: In seconds of `time.monotonic`.

        Raises:
            TimeoutError: The process does not read it in time.
            BrokenPipeError: It is gone.
        """
        view = memoryview(HEAD.pack(len(data)) + data)
        while view:
            self._wait(self.writing, select.POLLOUT, deadline)
            view = view[os.write(self.writing, view) :]

    def receive(self, deadline: float) -> bytes | None:
        """One answer, or None if the process has closed the pipe.

        Raises:
            TimeoutError: It does not come in time.
            TooLongError: It is longer than allowed.
        """
        head = self._exactly(HEAD.size, deadline)
        if head is None:
            return None
        (size,) = HEAD.unpack(head)
        if size > self._limit:
            raise TooLongError(f"an answer of {size} bytes, more than {self._limit}")
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes | None:
        data = bytearray()
        while len(data) < size:
            self._wait(self.reading, select.POLLIN, deadline)
            part = os.read(self.reading, min(size - len(data), CHUNK))
            if not part:
                return None
            data += part
        return bytes(data)

    def _wait(self, descriptor: int, event: int, deadline: float) -> None:
        poll = select.poll()
        poll.register(descriptor, event)
        while not poll.poll(TICK_MS):
            self._watch()
            if time.monotonic() > deadline:
                raise TimeoutError
        if time.monotonic() > deadline:
            raise TimeoutError
