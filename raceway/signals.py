"""Ctrl-C and `kill`: the first asks a run to stop after what it is doing, the second ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

_REASONS = {signal.SIGINT: "interrupt", signal.SIGTERM: "terminated"}
EXIT_CODES = {"interrupt": 130, "terminated": 143}
"""Of a command whose run was stopped, by the reason."""


class StopSignals(AbstractContextManager["StopSignals"]):
    """Takes SIGINT and SIGTERM for requests to stop.

    Whoever runs looks at `reason` between two steps. If that takes longer than `patience` seconds, or when a second
    signal comes, a KeyboardInterrupt ends whatever is under way; it has the exit code as its argument.
    """

    def __init__(self, patience: float = 6.0) -> None:
        self.reason: str | None = None
        """`interrupt` or `terminated`, if a signal has come."""
        self._patience = patience
        self._overdue = self._unhurried = False
        self._before: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def install(self) -> None:
        """Take the signals, explicitly: a job in the background begins with SIGINT ignored, and Ray takes SIGTERM."""
        if threading.current_thread() is threading.main_thread():
            for number in _REASONS:
                before = signal.signal(number, self._take)
                self._before.setdefault(number, before)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None:
            by_timer, self._overdue = self._overdue, False
            if by_timer and self._unhurried:
                return
            self._disarm()
            raise KeyboardInterrupt(EXIT_CODES[self.reason])
        self.reason = _REASONS[signal.Signals(number)]
        self._timer = threading.Timer(self._patience, self._run_out, (threading.get_ident(), number))
        self._timer.daemon = True
        self._timer.start()

    def _run_out(self, main: int, number: int) -> None:
        self._overdue = True
        signal.pthread_kill(main, number)  # which ends also what waits in the system

    @contextmanager
    def unhurried(self) -> Iterator[None]:
        """Have what is done meanwhile come to its end, however long it takes, unless a second signal comes."""
        self._unhurried = True
        try:
            yield
        finally:
            self._unhurried = False

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __exit__(self, *_: object) -> None:
        self._disarm()
        for number, before in self._before.items():
            if signal.getsignal(number) == self._take:
                signal.signal(number, before)
        self._before.clear()
