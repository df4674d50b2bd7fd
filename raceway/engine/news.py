"""One place to wait for several engines and threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from raceway.engine.base import Actor, Engine, Future
from raceway.engine.inline import InlineEngine
from raceway.errors import WaitTimeout


class News(deque[Any]):
    """Is not empty if something has happened. Whoever makes something happen appends to it."""

    def __init__(self, actors: Sequence[Actor]) -> None:
        super().__init__()
        self._own: InlineEngine | None = None if actors else InlineEngine()
        self.engine: Engine = self._own or actors[0].engine
        """Where `wait` waits: with the actors, or if there are none by itself."""
        self.expected: Future[Any] | None = None
        """A future without which nothing can go on: some engines wait for one faster than for any."""

    def wake(self, _: Any = None) -> None:
        """Say that something has happened on a thread, or in an engine other than the one in which `wait` waits."""
        self.append(None)
        self.engine.nudge()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for news and forget them. Return whether there were any in time."""
        expected, self.expected = self.expected, None
        try:
            self.engine.block(self.__len__, timeout, expected)
        except WaitTimeout:
            return False
        self.clear()
        return True

    def close(self) -> None:
        """Give back what was opened to wait with."""
        if self._own is not None:
            self._own.close()
