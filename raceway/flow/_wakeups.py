"""One place to wait for several engines and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine, Future
from raceway.errors import WaitTimeout


class Caller(Protocol):
    """An object with outstanding calls."""

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the outstanding calls, and how many must be done to wake the caller; None if others wake it."""


class Wakeups(deque[Any]):
    """A queue that is not empty if something has happened since the last wait. Callbacks append to it."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        super().__init__()
        self._own: Engine | None = None if actors else make_engine("inline")
        self.engine: Engine = self._own or actors[0].engine
        """The engine in which `wait` blocks: that of the first actor or, without actors, a private one."""
        self.callers: list[Caller] = []
        """Objects whose finished calls cause wake-ups."""

    def wake(self, _: Any = None) -> None:
        """End a wait, from a thread or an engine other than the one in which `wait` blocks."""
        self.append(None)
        self.engine.wake()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a wake-up and clear the queue. Return False on a timeout."""
        try:
            self.engine.block(self.__len__, timeout, self._awaited)
        except WaitTimeout:
            return False
        self.clear()
        return True

    def _awaited(self) -> tuple[list[Future[Any]], int] | None:
        awaited = [caller.awaited() for caller in self.callers]
        if len(busy := [calls for calls in awaited if calls is None or calls[0]]) == 1:
            return busy[0]
        return None if None in busy else ([future for calls in busy if calls for future in calls[0]], 1)

    def close(self) -> None:
        """Close the private engine, if there is one."""
        self.callers.clear()
        if self._own is not None:
            self._own.close()
