"""Ctrl-C and `kill`: the first signal asks a run to stop after the current step, the second interrupts it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

_REASONS = {signal.SIGINT: "interrupt", signal.SIGTERM: "terminated"}
EXIT_CODES = {"interrupt": 130, "terminated": 143}
"""Exit codes of a command whose run was stopped by a signal, by the reason."""


class StopSignals(AbstractContextManager["StopSignals"]):
    """Treats SIGINT and SIGTERM as requests to stop.

    The run checks `reason` between steps. If it does not stop within `timeout` seconds, or when a second signal
    arrives, a KeyboardInterrupt is raised, with the exit code as its argument.

    Args:
        timeout: seconds between the first signal and the KeyboardInterrupt.
    """

    def __init__(self, timeout: float = 6.0) -> None:
        self.reason: str | None = None
        """`interrupt` or `terminated` after a signal has arrived, else None."""
        self._timeout = timeout
        self._timed_out = self._timeout_disabled = False
        self._previous_handlers: dict[signal.Signals, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def install(self) -> None:
        """Install the handlers, even if SIGINT is ignored, as in a background job.

        Call it again after Ray has started, because Ray installs its own handler of SIGTERM.
        """
        if threading.current_thread() is threading.main_thread():
            for number in _REASONS:
                previous = signal.signal(number, self._handle)
                self._previous_handlers.setdefault(number, previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.reason is not None:
            by_timer, self._timed_out = self._timed_out, False
            if by_timer and self._timeout_disabled:
                return
            self._cancel_timer()
            raise KeyboardInterrupt(EXIT_CODES[self.reason])
        self.reason = _REASONS[signal.Signals(number)]
        self._timer = threading.Timer(self._timeout, self._signal_timeout, (threading.get_ident(), number))
        self._timer.daemon = True
        self._timer.start()

    def _signal_timeout(self, main_thread: int, number: int) -> None:
        self._timed_out = True
        signal.pthread_kill(main_thread, number)  # a signal also interrupts system calls that block

    @contextmanager
    def without_timeout(self) -> Iterator[None]:
        """Disable the timeout within the context: only a second signal interrupts it."""
        self._timeout_disabled = True
        try:
            yield
        finally:
            self._timeout_disabled = False

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __exit__(self, *_: object) -> None:
        self._cancel_timer()
        for number, previous in self._previous_handlers.items():
            if signal.getsignal(number) == self._handle:
                signal.signal(number, previous)
        self._previous_handlers.clear()
