"""Detection of workers that would wait for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.errors import DeadlockError
from raceway.runner._future import ServiceFuture

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend


def check_deadlock(backend: DriverBackend, worker: Actor, futures: Sequence[ServiceFuture[Any]]) -> None:
    """Raise DeadlockError if one of the futures cannot be done before `worker` has stopped waiting for it."""
    visited: set[Actor] = set()
    unchecked: list[Any] = list(futures)
    while unchecked:
        future = unchecked.pop()
        required = None if future.done() else _required_worker(future)
        if required is worker or (required is not None and not backend.engine.can_start_call(required)):
            raise DeadlockError(
                f"{worker.name} would wait for {future.method!r}, which can only run "
                f"on {worker.name} itself, after this call"
            )
        unchecked.extend(future.dependencies)
        if required is not None and required not in visited:
            visited.add(required)
            unchecked.extend(backend.blocked_workers.get(required, ()))


def _required_worker(future: ServiceFuture[Any]) -> Actor | None:
    """Return the only worker that can run the call, or None if any worker of its service can."""
    worker = future.actor
    if worker is not None:
        running = next(iter(worker.calls.values()), (None,))[0]
        # A blocked worker returns the calls it has not started, if its service may have other workers.
        return worker if future is running or not worker.returns_queued_calls else None
    pool = future.pool
    return pool.workers[0] if pool is not None and pool.ordered and pool.workers else None
