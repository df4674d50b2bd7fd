"""The history of a Runner's calls."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from raceway.engine.base import FAILED, PENDING, Future


@dataclass(frozen=True)
class CallRecord:
    """A call of a Runner's history."""

    number: int
    """Its place among all calls of the Runner, from 1."""
    service: str
    """Name of the service."""
    method: str
    """Name of the method; `__call__` for a function."""
    state: str
    """"queued", "running", "done" or "failed"."""
    worker: str | None
    """Name of the worker that it was sent to."""
    submitted_at: float
    """When it was made: seconds since the epoch."""
    seconds: float | None
    """Seconds from then until it was done, or None while it is not."""
    error: str | None
    """Type and message of its exception, if it has failed."""


class CallHistory:
    """The latest calls of a Runner. It keeps neither their arguments nor their results.

    Args:
        size: number of calls to keep.
    """

    def __init__(self, size: int) -> None:
        self._calls: deque[_Call] = deque(maxlen=size)
        self._num_calls = 0

    def add(self, service: str, future: Future[Any]) -> None:
        """Record a call. Called with the engine's lock, before the call is sent."""
        self._num_calls += 1
        call = _Call(self._num_calls, service, future)
        self._calls.append(call)
        future.add_done_callback(call.end)

    def records(self) -> list[CallRecord]:
        """Return the calls, the oldest first. Called with the engine's lock."""
        return [call.record() for call in self._calls]


class _Call:
    """A call as the history keeps it."""

    __slots__ = ("_future", "_method", "_number", "_seconds", "_service", "_start", "_submitted_at", "_worker")

    def __init__(self, number: int, service: str, future: Future[Any]) -> None:
        self._number = number
        self._service = service
        self._method = future.method
        self._future: Future[Any] | None = future
        self._worker: str | None = None
        self._submitted_at = time.time()
        self._start = time.monotonic()
        self._seconds: float | None = None

    def end(self, future: Future[Any]) -> None:
        """Record that the call is done, and let go of its result."""
        self._seconds = time.monotonic() - self._start
        self._worker = future.actor.name if future.actor is not None else None
        if future.state != FAILED:
            self._future = None

    def record(self) -> CallRecord:
        """Return the call as it is now."""
        state, worker, error = "done", self._worker, None
        if self._future is not None:
            if self._future.state == PENDING:
                state, worker = _state_of_pending(self._future)
            else:
                failure = self._future.exception()
                state, error = "failed", f"{type(failure).__name__}: {failure}"
        return CallRecord(
            self._number, self._service, self._method, state, worker, self._submitted_at, self._seconds, error
        )


def _state_of_pending(future: Future[Any]) -> tuple[str, str | None]:
    """Return whether a call is queued or running, and the worker that it was sent to."""
    if future.actor is None:
        return "queued", None
    first = next(iter(future.actor.calls.values()), (None,))[0]
    return "running" if first is future else "queued", future.actor.name
