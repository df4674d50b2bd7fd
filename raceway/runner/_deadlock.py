"""Detection of workers that would wait for themselves."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.errors import DeadlockError
from raceway.runner._future import ServiceFuture

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend
    from raceway.runner._wait_condition import Wait


def check_deadlock(backend: DriverBackend, worker: Actor, wait: Wait) -> None:
    """Raise DeadlockError if the wait cannot end before `worker` has stopped waiting."""
    stuck: Set[Actor] = {worker, *backend.blocked_workers.waits}
    if _can_end(backend, wait, stuck):
        return  # it needs nothing of a blocked worker, as nearly always
    stuck = _find_stuck(backend, worker)
    if not _can_end(backend, wait, stuck):
        method = next(future for future in wait.pending() if not _can_be_done(backend, future, stuck)).method
        raise DeadlockError(
            f"{worker.name} would wait for {method!r}, which can only run on {worker.name} itself, after this call"
        )


def _find_stuck(backend: DriverBackend, worker: Actor) -> set[Actor]:
    """Return the workers that stay blocked as long as `worker` waits: all but those shown to be able to continue."""
    stuck = {worker, *backend.blocked_workers.waits}
    num_stuck = 0
    while len(stuck) != num_stuck:
        num_stuck = len(stuck)
        # The latest first: they are the innermost of nested calls, on which the others depend.
        for blocked, waits in reversed(backend.blocked_workers.waits.items()):
            if blocked is not worker and blocked in stuck and any(_can_end(backend, wait, stuck) for wait in waits):
                stuck.remove(blocked)
    return stuck


def _can_end(backend: DriverBackend, wait: Wait, stuck: Set[Actor]) -> bool:
    num_missing = wait.num_missing
    for future in wait.pending():
        if num_missing <= 0:
            break
        num_missing -= _can_be_done(backend, future, stuck)
    return num_missing <= 0


def _can_be_done(backend: DriverBackend, future: Any, stuck: Set[Actor]) -> bool:
    """Return whether neither the call nor one that it depends on needs a stuck worker."""
    unchecked = [future]
    while unchecked:
        future = unchecked.pop()
        if future.done():
            continue
        required = _required_worker(future)
        if required is not None and (required in stuck or not backend.engine.can_start_call(required)):
            return False
        unchecked.extend(future.dependencies)
    return True


def _required_worker(future: ServiceFuture[Any]) -> Actor | None:
    """Return the only worker that can run the call, or None if any worker of its service can."""
    worker = future.actor
    if worker is not None:
        running = next(iter(worker.calls.values()), (None,))[0]
        # A blocked worker returns the calls it has not started, if its service may have other workers.
        return worker if future is running or not worker.returns_queued_calls else None
    pool = future.pool
    return pool.workers[0] if pool is not None and pool.ordered and pool.workers else None
