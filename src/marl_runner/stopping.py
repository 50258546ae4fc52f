"""Being told to end by a signal, also where a user's function swallows the exception."""

from __future__ import annotations

import signal

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(BaseException):
    """The process was told to end by a signal; not an Exception, so that no `except Exception` swallows it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopRequest:
    """The signal that was received, if any; hooks with a bare `except:` cannot hide it."""

    def __init__(self) -> None:
        self.number: int | None = None

    def receive(self, number: int) -> None:
        """Remembers the signal and raises Stopped; a second signal will end the process at once."""
        self.number = number
        for known in SIGNALS:
            signal.signal(known, signal.SIG_DFL)
        raise Stopped(number)

    def check(self) -> None:
        """Raises Stopped if a signal was received; called after every call of a user's function."""
        if self.number is not None:
            raise Stopped(self.number)


REQUEST = StopRequest()
"""One for the process, as signals are."""
