"""Counting how many of some futures are done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from raceway.engine.base import Future as EngineFuture
from raceway.errors import ConfigError
from raceway.runner._future import Future


class Tally:
    """Counts how many of some futures are done."""

    def __init__(self, futures: Sequence[Future[Any]], count: int | None = None, or_failure: bool = False) -> None:
        wanted = len(futures) if count is None else count
        if not 0 <= wanted <= len(futures):
            raise ConfigError(f"count must be between 0 and the {len(futures)} futures given, not {count!r}")
        self._futures = futures
        self._left = wanted
        self._or_failure = or_failure
        self._failed = False
        self.needs_all = wanted == len(futures)
        for future in futures:
            if future._state == 0:
                future.add_done_callback(self._one)
            else:
                self._one(future)

    def _one(self, future: EngineFuture[Any]) -> None:
        self._left -= 1
        if self._or_failure and future._state == 3:
            self._failed = True

    def forget(self) -> None:
        """Stop counting: a future that is waited for again and again must not remember each time."""
        if self._left > 0:
            for future in self._futures:
                future.remove_done_callback(self._one)

    def ready(self) -> bool:
        return self._left <= 0 or self._failed

    def results(self) -> list[Any]:
        """Return the results in order, or raise the first failure there is."""
        if self._failed:
            for future in self._futures:
                if future._state == 3:
                    raise future._failure()
        return [future.result() for future in self._futures]
