"""One place to wait for several engines and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from raceway.engine.base import Actor, Engine, Future
from raceway.engine.inline import InlineEngine
from raceway.errors import WaitTimeout


class Caller(Protocol):
    """Whoever has calls out."""

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return calls that are out, and how many must be before it has news; None if others bring it some."""


class News(deque[Any]):
    """Is not empty if something has happened. Whoever makes something happen appends to it."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        super().__init__()
        self._own: InlineEngine | None = None if actors else InlineEngine()
        self.engine: Engine = self._own or actors[0].engine
        """Where `wait` waits: with the actors, or if there are none by itself."""
        self.callers: list[Caller] = []
        """Who has calls out whose results make news."""

    def wake(self, _: Any = None) -> None:
        """Say that something has happened on a thread, or in an engine other than the one in which `wait` waits."""
        self.append(None)
        self.engine.nudge()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for news and forget them. Return whether there were any in time."""
        try:
            self.engine.block(self.__len__, timeout, self._awaited)
        except WaitTimeout:
            return False
        self.clear()
        return True

    def _awaited(self) -> tuple[list[Future[Any]], int] | None:
        found = [caller.awaited() for caller in self.callers]
        if len(busy := [one for one in found if one is None or one[0]]) == 1:
            return busy[0]
        return None if None in busy else ([future for one in busy if one for future in one[0]], 1)

    def close(self) -> None:
        """Give back what was opened to wait with."""
        self.callers.clear()
        if self._own is not None:
            self._own.close()
