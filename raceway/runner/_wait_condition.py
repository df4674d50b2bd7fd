"""The condition that ends a wait for several futures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raceway.engine.base import FAILED, PENDING, Future
from raceway.errors import ConfigError
from raceway.runner._future import ServiceFuture


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
        needed = len(futures) if count is None else count
        if not 0 <= needed <= len(futures):
            raise ConfigError(f"count must be between 0 and the number of futures, {len(futures)}, not {count!r}")
        self._futures = futures
        self._num_missing = needed
        self._or_failure = or_failure
        self._failed = False
        self.needs_all = needed == len(futures)
        for future in futures:
            if future.state == PENDING:
                future.add_done_callback(self._on_done)
            else:
                self._on_done(future)

    def _on_done(self, future: Future[Any]) -> None:
        self._num_missing -= 1
        if self._or_failure and future.state == FAILED:
            self._failed = True

    def remove_callbacks(self) -> None:
        """Stop counting, so that a future that is waited for many times does not collect callbacks."""
        if self._num_missing > 0:
            for future in self._futures:
                future.remove_done_callback(self._on_done)

    def is_met(self) -> bool:
        """Return whether the wait is over."""
        return self._num_missing <= 0 or self._failed

    def results(self) -> list[Any]:
        """Return the results in order, or raise the first failure in that order."""
        if self._failed:
            for future in self._futures:
                if future.state == FAILED:
                    future.result()  # raises the error
        return [future.result() for future in self._futures]
