"""Progress of a long command, on a terminal or in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TextIO


class Progress(AbstractContextManager["Progress"]):
    """Displays a count: on a terminal in one line that is overwritten, in a log as a line now and then.

    Args:
        unit: text after the count.
        stream: where it is written, by default stderr.
        clock: monotonic clock in seconds.
    """

    INTERVALS = (0.1, 10.0)
    """Minimum seconds between two updates, on a terminal and in a log."""

    def __init__(self, unit: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.unit, self.stream, self._clock = unit, stream or sys.stderr, clock
        self._is_terminal = self.stream.isatty()
        self._next = clock() + self._interval

    @property
    def _interval(self) -> float:
        return self.INTERVALS[not self._is_terminal]

    def __call__(self, count: int) -> None:
        """Display the count, if an update is due."""
        if self._clock() >= self._next:
            self._next = self._clock() + self._interval
            self._write(f"\r\x1b[K  {count} {self.unit}" if self._is_terminal else f"  {count} {self.unit}\n")

    def __exit__(self, *_: object) -> None:
        """Clear the line on a terminal."""
        self._write("\r\x1b[K" if self._is_terminal else "")

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
