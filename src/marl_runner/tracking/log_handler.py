"""Log lines beside a live line: rich can only keep them apart on the stdout it has replaced."""

from __future__ import annotations

import logging
import sys
from typing import TextIO


class StdoutHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stdout` is when the line is written, not when logging was set up."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        self.stream = sys.stdout
        super().emit(record)
