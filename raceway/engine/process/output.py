"""The output of workers: forwarded line by line under their name. The last lines are kept to explain a death."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import deque
from typing import TextIO

from raceway.engine._reactor import Reactor

_log = logging.getLogger("raceway.worker")
_NUM_TAIL_LINES = 30
_MAX_READS = 64  # per call of `drain`: a worker may never stop printing
_LOG_LEVEL = re.compile("\x1f(\\d+)\x1f")


class WorkerLogHandler(logging.StreamHandler[TextIO]):
    """A worker's log handler of last resort: it starts every line with the level, for the driver to read."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.WARNING)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return "\n".join(f"\x1f{record.levelno}\x1f{line}" for line in super().format(record).split("\n"))


class WorkerOutput:
    """The driver's end of a worker's standard output and standard error.

    Attributes:
        fd: the end of the pipe that the driver reads; -1 when closed.
        worker_fd: the end that the worker writes.
    """

    def __init__(self, reactor: Reactor, name: str) -> None:
        self.fd, self.worker_fd = os.pipe()
        os.set_blocking(self.fd, False)
        self._reactor = reactor
        self._name = name
        self._partial_line = b""
        self._last_lines: deque[str] = deque(maxlen=_NUM_TAIL_LINES)
        reactor.watch(self.fd, lambda mask: self.drain())

    def drain(self) -> None:
        """Forward the worker's output; close at its end."""
        for _ in range(_MAX_READS):
            if self.fd < 0:
                return
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._partial_line = (self._partial_line + data).split(b"\n")
            if not data:
                lines = [self._partial_line] if self._partial_line else []
                self.close()
            for line in lines:
                self._forward(line.decode(errors="backslashreplace"))

    def close(self) -> None:
        """Stop reading."""
        if self.fd >= 0:
            self._reactor.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1

    def tail(self) -> str:
        """Return the last lines, to append to an error message."""
        lines = self._last_lines
        return "".join(["\nIts last output:", *(f"\n  {line}" for line in lines)]) if lines else ""

    def _forward(self, line: str) -> None:
        match = _LOG_LEVEL.match(line)
        level, line = (int(match[1]), line[match.end() :]) if match else (logging.INFO, line)
        self._last_lines.append(line)
        if _log.hasHandlers():
            _log.log(level, "[%s] %s", self._name, line)
        else:  # logging is not set up: a worker's prints should still be seen, and stdout belongs to the user
            print(f"[{self._name}] {line}", file=sys.stderr)
