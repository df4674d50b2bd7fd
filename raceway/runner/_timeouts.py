"""Timeouts of the requests that workers wait for."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from raceway.engine.base import Engine


class Timeouts:
    """Callbacks at times of the engine's clock, unless discarded before. All methods are called with the engine's lock.

    The engine's own timers cannot be discarded, and a worker that polls sets thousands: so one of them serves many.

    Args:
        engine: has the clock and the timers.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._callbacks: dict[object, tuple[float, Callable[[], None]]] = {}
        self._timers: list[float] = []  # a heap of the times at which the engine calls `_check`

    def add(self, key: object, seconds: float, callback: Callable[[], None]) -> None:
        """Call `callback()` after some seconds, unless `discard(key)` is called before."""
        when = self._engine.clock() + seconds
        self._callbacks[key] = (when, callback)
        self._ensure_timer(when)

    def discard(self, key: object) -> None:
        """Remove a callback, if it is still there."""
        self._callbacks.pop(key, None)

    def _ensure_timer(self, when: float) -> None:
        if not self._timers or when < self._timers[0]:
            heapq.heappush(self._timers, when)
            self._engine.call_at(when, self._check)

    def _check(self) -> None:
        now = self._engine.clock()
        while self._timers and self._timers[0] <= now:
            heapq.heappop(self._timers)
        for key, (when, callback) in list(self._callbacks.items()):
            if when <= now and key in self._callbacks:
                del self._callbacks[key]
                callback()
        if self._callbacks:
            self._ensure_timer(min(when for when, _ in self._callbacks.values()))
