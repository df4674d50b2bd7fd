"""The workers of a service: assigning calls to them, starting more, and replacing those that die."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from raceway.engine.base import Actor, Future, Message, Resources
from raceway.errors import ActorDied, ActorError, ActorStartError, EngineClosed, RacewayError

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend
    from raceway.runner._future import ServiceFuture

_log = logging.getLogger("raceway.runner")

_MAX_QUEUED_MICROS = 1000
"""Work that may be queued at a worker: enough that a worker with tiny calls never waits for the driver, and little
enough that a call never waits long behind another while a second worker is idle."""
_MAX_QUEUED_CALLS = 64
_MAX_START_ATTEMPTS = 3  # in a row, for workers that are killed while they start; a constructor's exception is final
_START_PAUSE_SECONDS = 5.0  # after that, before the service starts more workers beside those that run


class WorkerPool:
    """The workers of one service.

    Args:
        backend: the run it belongs to.
        name: name of the service.
        factory: creates the object in each worker.
        args: arguments of the factory.
        size: workers that may run calls at the same time, not counting those that are blocked in nested calls.
        resources: resources of each worker.
        ordered: whether it has one stateful worker, whose calls run in the order sent and which is not replaced.
        deadline: seconds that a call may run before its worker is killed.
    """

    def __init__(
        self,
        backend: DriverBackend,
        name: str,
        factory: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        size: int,
        resources: Resources,
        ordered: bool,
        deadline: float | None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.size = size
        self.ordered = ordered
        self.deadline = deadline
        self.workers: list[Actor] = []
        self.error: BaseException | None = None
        """Why it accepts no more calls, or None while it does."""
        self._factory = factory
        self._args = args
        self._resources = resources
        self._queue: deque[tuple[Message, ServiceFuture[Any]]] = deque()
        self._all_busy = False  # calls are queued, and no further one can be sent before one is done
        self._num_started = 0
        self._num_failed_starts = 0  # since a worker was ready
        self._no_start_before = -math.inf
        self._max_worker_calls = 1
        self._slowest_micros = 0.0

    # All methods are called with the engine's lock.

    def submit(self, message: Message, future: ServiceFuture[Any]) -> None:
        """Queue a call, to run when its dependencies are done."""
        if self.error is not None:
            future.fail(self.error)
            return
        future.cancel_hook = self._can_cancel
        self._queue.append((message, future))
        if not self._all_busy:
            self.dispatch_queued()

    @staticmethod
    def _can_cancel(future: Future[Any]) -> bool:
        return future.actor is None  # `dispatch_queued` then skips the cancelled future

    def start_worker(self) -> Actor:
        """Start one more worker."""
        self._num_started += 1
        actor = self.backend.engine.spawn(
            self._factory,
            self._args,
            name=f"{self.backend.name}/{self.name}-{self._num_started}",
            resources=self._resources,
            returns_queued_calls=not self.ordered,
        )
        actor.on_call_done = self._on_call_done
        actor.on_calls_returned = self._on_calls_returned
        self.backend.pools[actor] = self
        if actor.error is not None:  # the inline engine fails at once
            self._on_calls_returned(actor, [])
        else:
            self.workers.append(actor)
            actor.ready.add_done_callback(self._on_ready)
        return actor

    def _on_ready(self, ready: Future[bool]) -> None:
        if ready.exception() is None:
            self._num_failed_starts = 0
            self._no_start_before = -math.inf

    def dispatch_queued(self) -> None:
        """Send queued calls to workers, as many as can run now."""
        self._all_busy = False
        queue = self._queue
        while queue and self.error is None:
            message, future = queue[0]
            if future.done():  # cancelled, or a dependency has failed
                queue.popleft()
                continue
            if future.dependencies:
                if self.ordered or not self._rotate_to_runnable():
                    return
                continue
            try:
                worker = self._choose_worker()
            except (RacewayError, OSError) as error:  # no resources for another worker
                if not self._has_running_worker():
                    self._fail_queued(error)
                return  # the running workers will take the call later
            if worker is None:
                self._all_busy = bool(self._queue)
                return
            queue.popleft()
            self.backend.engine.dispatch(worker, message, future)

    def _rotate_to_runnable(self) -> bool:
        """Rotate the queue so that a call without dependencies is first; return whether there is one."""
        for index, (_, future) in enumerate(self._queue):
            if future.done() or not future.dependencies:
                self._queue.rotate(-index)
                return True
        return False

    def _choose_worker(self) -> Actor | None:
        """Return the worker with the fewest calls, or a new one if the pool may grow, or None if all are busy."""
        best, fewest, num_running = None, self._max_worker_calls, 0
        blocked, can_start_call = self.backend.blocked_workers.waits, self.backend.engine.can_start_call
        for worker in self.workers:
            if worker in blocked or not can_start_call(worker):
                continue
            num_running += 1
            num_calls = len(worker.calls)
            if num_calls < fewest:
                best, fewest = worker, num_calls
                if not num_calls:
                    return worker
        if self.ordered:
            if not self.workers:
                self.start_worker()
            return self.workers[0] if self.workers and len(self.workers[0].calls) < self._max_worker_calls else None
        if num_running < self.size and (not num_running or self.backend.engine.clock() >= self._no_start_before):
            started = self.start_worker()
            return started if started.error is None else None
        return best

    def _has_running_worker(self) -> bool:
        """Return whether a worker runs, or starts, that is not blocked: calls that cannot be sent now can be later."""
        blocked, can_start_call = self.backend.blocked_workers.waits, self.backend.engine.can_start_call
        return any(worker not in blocked and can_start_call(worker) for worker in self.workers)

    def _on_call_done(self, worker: Actor) -> None:
        """Adapt the number of calls per worker to the duration of a finished call, and send more."""
        # A maximum that decays slowly: after one slow call among quick ones, few calls should queue at a worker.
        self._slowest_micros = max(worker.last_micros, self._slowest_micros * 0.98)
        self._max_worker_calls = max(1, min(_MAX_QUEUED_CALLS, int(_MAX_QUEUED_MICROS / (self._slowest_micros + 1))))
        if self._queue:
            self.dispatch_queued()

    def _on_calls_returned(self, worker: Actor, calls: list[tuple[Future[Any], Message]]) -> None:
        """Queue the calls again that a worker had not started when it died or blocked in a nested call."""
        for future, message in reversed(calls):
            future.actor = None
            self._queue.appendleft((message, cast("ServiceFuture[Any]", future)))
        if worker.error is not None:
            self._remove_worker(worker, worker.error)
        self.dispatch_queued()

    def _remove_worker(self, worker: Actor, error: BaseException) -> None:
        """Forget a worker that has died, and fail the queued calls if no other can run them."""
        if worker in self.workers:
            self.workers.remove(worker)
        self.backend.pools.pop(worker, None)
        self.backend.blocked_workers.remove_worker(worker)
        if isinstance(error, ActorStartError):
            self._num_failed_starts += 1
            if error.__cause__ is not None or self._num_failed_starts >= _MAX_START_ATTEMPTS:
                self._stop_starting(error)
        elif self.ordered:
            self.error = ActorDied(f"the state of service {self.name!r} was lost: {error}", worker.name)
            self.error.__cause__ = error
            self._fail_queued(self.error)
        else:
            _log.warning("a worker of service %r died and is replaced: %s", self.name, error)

    def _stop_starting(self, error: BaseException) -> None:
        """Leave the queued calls to the workers that run, for a while, or fail them if there are none."""
        self._num_failed_starts = 0
        if self._has_running_worker():
            self._no_start_before = self.backend.engine.clock() + _START_PAUSE_SECONDS
            self.backend.engine.call_at(self._no_start_before, self.dispatch_queued)
            _log.warning("a worker of service %r could not start; others continue: %s", self.name, error)
        else:
            self._fail_queued(error)

    def _fail_queued(self, error: BaseException) -> None:
        if self.ordered:
            self.error = self.error or error
        queue, self._queue = self._queue, deque()
        self._all_busy = False
        for _, future in queue:
            future.fail(error)

    def reject_calls(self, error: EngineClosed) -> None:
        """Fail queued and future calls, and leave the workers to the engine, which is closing."""
        self.error = error
        self._fail_queued(error)

    def close(self, error: EngineClosed) -> None:
        """End the workers, and fail all calls that are not done."""
        self.reject_calls(error)
        for worker in self.workers:
            worker.on_calls_returned = worker.on_call_done = None
            self.backend.pools.pop(worker, None)
            self.backend.blocked_workers.remove_worker(worker)
            for future, _ in list(worker.calls.values()):
                future.fail(error)  # or it would fail because its worker was killed, which says less
            self.backend.engine.kill(worker)
        self.workers = []


def first_error(workers: list[Actor]) -> ActorError | None:
    """Return the error of a worker that could not start, or None."""
    for worker in workers:
        if isinstance(worker.error, ActorError):
            return worker.error
    return None
