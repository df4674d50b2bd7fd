"""The conditions that end a wait for several futures."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from raceway.engine.base import FAILED, PENDING, Future
from raceway.errors import ConfigError
from raceway.runner._future import ServiceFuture


class Wait(Protocol):
    """What a thread or worker waits for."""

    on_met: Callable[[], None] | None
    """Called with the engine's lock when the wait is over."""

    @property
    def num_missing(self) -> int:
        """How many of the pending futures must be done."""

    def pending(self) -> Iterable[Future[Any]]:
        """Return the futures that are not done."""

    def is_met(self) -> bool:
        """Return whether the wait is over."""

    def end(self) -> None:
        """Stop waiting."""


class WaitCondition:
    """Becomes true when enough of some futures are done.

    Args:
        futures: the futures that are waited for.
        count: how many of them must be done; by default all.
        or_failure: whether the first failure is enough, too.
    """

    def __init__(
        self, futures: Sequence[ServiceFuture[Any]], count: int | None = None, or_failure: bool = False
    ) -> None:
        self.on_met: Callable[[], None] | None = None
        self.num_missing = check_count(futures, count)
        self._futures = futures
        self._or_failure = or_failure
        self._failed = False
        self._needs_all = self.num_missing == len(futures)
        for future in futures:
            if future.state == PENDING:
                future.add_done_callback(self._on_done)
            else:
                self._on_done(future)

    def _on_done(self, future: Future[Any]) -> None:
        self.num_missing -= 1
        if self._or_failure and future.state == FAILED:
            self._failed = True
        if self.on_met is not None and self.is_met():
            self.on_met()

    def pending(self) -> Iterable[Future[Any]]:
        """Return the futures that are not done."""
        return (future for future in self._futures if future.state == PENDING)

    def is_met(self) -> bool:
        """Return whether the wait is over."""
        return self.num_missing <= 0 or self._failed

    def end(self) -> None:
        """Stop counting, so that a future that is waited for many times does not collect callbacks."""
        self.on_met = None
        if self.num_missing > 0 or not self._needs_all:
            for future in self.pending():
                future.remove_done_callback(self._on_done)

    def first_failure(self) -> BaseException | None:
        """Return the exception of the first future in order that has failed, or None."""
        for future in self._futures:
            if future.state == FAILED:
                return future.exception(0)
        return None

    def results(self) -> list[Any]:
        """Return the results in order, or raise the first failure in that order."""
        if self._failed:
            for future in self._futures:
                if future.state == FAILED:
                    future.result()  # raises the error
        return [Future.result(future) for future in self._futures]  # not `get`, which would check if it must wait


class Selection:
    """Collects futures in the order of their completion. Each has one callback, however often one is waited for.

    Args:
        futures: the futures to select from.
    """

    num_missing = 1

    def __init__(self, futures: Sequence[ServiceFuture[Any]]) -> None:
        self.on_met: Callable[[], None] | None = None
        self.done: deque[int] = deque()
        """Indices of the futures that are done and have not been taken."""
        self._pending: dict[Future[Any], list[int]] = {}
        for index, future in enumerate(futures):
            self._pending.setdefault(future, []).append(index)
        for pending in list(self._pending):
            pending.add_done_callback(self._on_done)

    def _on_done(self, future: Future[Any]) -> None:
        self.done.extend(self._pending.pop(future, ()))
        if self.on_met is not None:
            self.on_met()

    def take(self) -> list[int]:
        """Return the indices of the futures that are done and have not been taken."""
        taken = list(self.done)
        self.done.clear()
        return taken

    def pending(self) -> Iterable[Future[Any]]:
        """Return the futures that are not done."""
        return self._pending

    def is_met(self) -> bool:
        """Return whether a future is done that has not been taken."""
        return bool(self.done)

    def end(self) -> None:
        """Stop waiting, but keep collecting for the next wait."""
        self.on_met = None

    def close(self) -> None:
        """Stop collecting."""
        for future in list(self._pending):
            future.remove_done_callback(self._on_done)


def check_count(futures: Sequence[Any], count: int | None) -> int:
    """Return how many of the futures must be done."""
    needed = len(futures) if count is None else count
    if not 0 <= needed <= len(futures):
        raise ConfigError(f"count must be between 0 and the number of futures, {len(futures)}, not {count!r}")
    return needed
