"""What workers print: forwarded line by line under their name, the last lines kept to explain a death."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections import deque
from typing import TextIO

from raceway.engine._reactor import Reactor

_log = logging.getLogger("raceway.worker")
_TAIL_LINES = 30
_READS_A_TURN = 64
_LOGGED = re.compile("\x1f(\\d+)\x1f")


class LogLines(logging.StreamHandler[TextIO]):
    """What a worker's log is written by, where its user has set up none: every line says its level to the driver."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setLevel(logging.WARNING)

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        return "\n".join(f"\x1f{record.levelno}\x1f{line}" for line in super().format(record).split("\n"))


class Output:
    """The driver's end of a worker's standard output and error."""

    def __init__(self, reactor: Reactor, name: str) -> None:
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self._reactor = reactor
        self._name = name
        self._partial = b""
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        reactor.watch(self.fd, lambda mask: self.drain())

    def drain(self) -> None:
        """Take in what is there, within reason (it may never stop); at the end, close."""
        for _ in range(_READS_A_TURN):
            if self.fd < 0:
                return
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            if not data:
                lines = [self._partial] if self._partial else []
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
        """Return the last lines, to be put behind an error message."""
        return "".join(["\nIts last output:", *(f"\n  {line}" for line in self._last)]) if self._last else ""

    def _forward(self, line: str) -> None:
        logged = _LOGGED.match(line)
        level, line = (int(logged[1]), line[logged.end() :]) if logged else (logging.INFO, line)
        self._last.append(line)
        if _log.hasHandlers():
            _log.log(level, "[%s] %s", self._name, line)
        else:  # logging is not set up: a print in a worker should still be seen, and stdout is the user's
            print(f"[{self._name}] {line}", file=sys.stderr)
