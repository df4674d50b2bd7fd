"""The workers that wait in nested calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raceway.engine.base import Actor
from raceway.errors import DeadlockError
from raceway.runner._deadlock import check_deadlock
from raceway.runner._timeouts import Timeouts
from raceway.runner._wait_condition import Wait

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend


class BlockedWorkers:
    """The workers that wait in nested calls. All methods are called with the engine's lock.

    Args:
        backend: has the services, which start other workers in place of those that wait.
    """

    def __init__(self, backend: DriverBackend) -> None:
        self.waits: dict[Actor, list[Wait]] = {}
        """What each of them waits for: several things, if it has threads."""
        self.timeouts = Timeouts(backend.engine)
        """Timeouts of the requests that workers wait for, by what they wait for."""
        self._backend = backend

    def add(self, worker: Actor, wait: Wait) -> None:
        """Record that a worker waits, so that others are started in its place, or raise DeadlockError."""
        try:
            check_deadlock(self._backend, worker, wait)
        except DeadlockError:
            wait.end()
            raise
        self.waits.setdefault(worker, []).append(wait)
        for pool in self._backend.services.values():
            pool.dispatch_queued()

    def remove(self, worker: Actor, wait: Wait) -> None:
        """End a wait of a worker."""
        self._end(wait)
        waits = self.waits.get(worker, [])
        if wait in waits:
            waits.remove(wait)
            if not waits:
                del self.waits[worker]

    def remove_worker(self, worker: Actor) -> None:
        """End all waits of a worker that has died or is being ended."""
        for wait in self.waits.pop(worker, ()):
            self._end(wait)

    def _end(self, wait: Wait) -> None:
        wait.end()
        self.timeouts.discard(wait)
