"""Detection of workers that would wait for themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.errors import DeadlockError
from raceway.runner._future import ServiceFuture

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend
    from raceway.runner._wait_condition import Wait


def check_deadlock(backend: DriverBackend, worker: Actor, wait: Wait) -> None:
    """Raise DeadlockError if the wait cannot end before `worker` has stopped waiting."""
    check = _Check(backend, {worker, *backend.blocked_workers.waits})
    if check.can_end(wait):
        return  # it needs nothing of a blocked worker, as nearly always
    check.release_workers(worker)
    if not check.can_end(wait):
        method = next(future for future in wait.pending() if not check.can_be_done(future)).method
        raise DeadlockError(
            f"{worker.name} would wait for {method!r}, which can only run on {worker.name} itself, after this call"
        )


class _Check:
    """Finds out what the workers that are not stuck can do.

    Args:
        backend: has the blocked workers.
        stuck: workers that stay blocked, as far as is known. Later there may be fewer, never more.
    """

    def __init__(self, backend: DriverBackend, stuck: set[Actor]) -> None:
        self._backend = backend
        self._stuck = stuck
        self._possible: set[Any] = set()  # futures that can be done: they stay so when fewer workers are stuck

    def release_workers(self, worker: Actor) -> None:
        """Leave only those stuck that stay blocked as long as `worker` waits: all that cannot be shown to continue."""
        num_stuck = 0
        while len(self._stuck) != num_stuck:
            num_stuck = len(self._stuck)
            # The latest first: they are the innermost of nested calls, on which the others depend.
            for blocked, waits in reversed(self._backend.blocked_workers.waits.items()):
                if blocked is not worker and blocked in self._stuck and any(map(self.can_end, waits)):
                    self._stuck.remove(blocked)

    def can_end(self, wait: Wait) -> bool:
        """Return whether enough of the futures that are waited for can be done."""
        pending, num_missing = list(wait.pending()), wait.num_missing
        num_left = len(pending)
        for future in pending:
            if not 0 < num_missing <= num_left:
                break
            num_missing -= self.can_be_done(future)
            num_left -= 1
        return num_missing <= 0

    def can_be_done(self, future: Any) -> bool:
        """Return whether neither the call nor one that it depends on needs a stuck worker."""
        found, unchecked = {future}, [future]  # each is checked once, however many calls depend on it
        while unchecked:
            future = unchecked.pop()
            if future.done() or future in self._possible:
                continue
            required = _required_worker(future)
            if required is not None and (required in self._stuck or not self._backend.engine.can_start_call(required)):
                return False
            dependencies = [dependency for dependency in future.dependencies if dependency not in found]
            found.update(dependencies)
            unchecked += dependencies
        self._possible |= found
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
