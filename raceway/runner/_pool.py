"""A service's workers: which of them runs what, when there are more, and what happens when one dies."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from raceway.engine._core import CoreActor
from raceway.engine.base import Future as EngineFuture
from raceway.engine.base import Message, Resources
from raceway.errors import ActorDied, ActorError, ActorStartError, EngineClosed, RacewayError

if TYPE_CHECKING:
    from raceway.runner._future import Future
    from raceway.runner._hub import Hub

_log = logging.getLogger("raceway.runner")

_QUEUED_MICROS = 1000
"""Work that may lie in front of a worker: enough that a worker with tiny calls never waits for the driver, so little
that a call never waits long behind another while a second worker idles."""
_MOST_QUEUED = 64
_START_TRIES = 3  # a worker killed while it starts is started again; one whose constructor raises is not


class Pool:
    """The workers of one service.

    Args:
        hub: the run it belongs to.
        name: of the service.
        factory: makes the object in each worker.
        args: its arguments.
        size: workers that may run calls at the same time; those that wait for nested calls do not count.
        resources: what each worker needs.
        ordered: one worker with state: its calls run in the order sent, and it is not replaced when it dies.
        deadline: seconds that a call may run before its worker is killed.
    """

    def __init__(
        self,
        hub: Hub,
        name: str,
        factory: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        size: int,
        resources: Resources,
        ordered: bool,
        deadline: float | None,
    ) -> None:
        self.hub = hub
        self.name = name
        self.size = size
        self.ordered = ordered
        self.deadline = deadline
        self.members: list[CoreActor] = []
        self.broken: BaseException | None = None
        """Why it takes no more calls."""
        self._factory = factory
        self._args = args
        self._resources = resources
        self._queue: deque[tuple[Message, Future[Any]]] = deque()
        self._num_started = 0
        self._num_failed_starts = 0
        self._depth = 1
        self._slowest = 0.0

    def submit(self, message: Message, future: Future[Any]) -> None:
        """Queue a call, to run when the futures it needs are done. Called with the lock, as all that follows."""
        if self.broken is not None:
            future.fail(self.broken)
            return
        future.cancel_hook = self._withdraw
        self._queue.append((message, future))
        self.feed()

    @staticmethod
    def _withdraw(future: EngineFuture[Any]) -> bool:
        return future.actor is None  # `feed` leaves out what is done

    def start(self) -> CoreActor:
        """Start one more worker."""
        self._num_started += 1
        actor = self.hub.engine.spawn(
            self._factory,
            self._args,
            name=f"{self.hub.name}/{self.name}-{self._num_started}",
            resources=self._resources,
            hands_back=not self.ordered,
        )
        assert isinstance(actor, CoreActor)
        actor.on_free = self._freed
        actor.on_lost = self._lost
        self.hub.pools[actor] = self
        if actor.error is not None:  # the inline engine knows at once
            self._lost(actor, [])
        else:
            self.members.append(actor)
        return actor

    def feed(self) -> None:
        """Hand out what can run now."""
        queue = self._queue
        while queue and self.broken is None:
            message, future = queue[0]
            if future.done():  # cancelled, or something it needs has failed
                queue.popleft()
                continue
            if future.needs:
                if self.ordered or not self._skip_waiting():
                    return
                continue
            try:
                member = self._free_member()
            except (RacewayError, OSError) as error:  # there is no room for another worker
                if not self.members:
                    self._fail_queued(error)
                return  # those that are there will get to it
            if member is None:
                return
            queue.popleft()
            self.hub.engine.dispatch(member, message, future)

    def _skip_waiting(self) -> bool:
        """Bring a call that can run to the front of the queue; return whether there is one."""
        for place, (_, future) in enumerate(self._queue):
            if future.done() or not future.needs:
                self._queue.rotate(-place)
                return True
        return False

    def _free_member(self) -> CoreActor | None:
        """Return the worker with the least before it, a new one if that may be, or None if all have enough."""
        best, least, running = None, self._depth, 0
        waiting, can_begin = self.hub.waiting, self.hub.engine.can_begin
        for member in self.members:
            if member in waiting or not can_begin(member):
                continue
            running += 1
            load = len(member.calls)
            if load < least:
                best, least = member, load
                if not load:
                    return member
        if self.ordered:
            if not self.members and self._num_started == 0:
                self.start()
            return self.members[0] if self.members and len(self.members[0].calls) < self._depth else None
        if running < self.size:
            started = self.start()
            return started if started.error is None else None
        return best

    def _freed(self, actor: CoreActor) -> None:
        """Learn from a call that is done how long they take, and hand out more."""
        # A slowly forgotten maximum: one slow call among quick ones is reason enough not to queue much behind another.
        self._slowest = max(actor.last_micros, self._slowest * 0.98)
        self._depth = max(1, min(_MOST_QUEUED, int(_QUEUED_MICROS / (self._slowest + 1))))
        if self._queue:
            self.feed()

    def _lost(self, actor: CoreActor, calls: list[tuple[EngineFuture[Any], Message]]) -> None:
        """Give to others what a worker that died, or that waits, had not begun."""
        for future, message in reversed(calls):
            future.actor = None
            self._queue.appendleft((message, cast("Future[Any]", future)))
        if actor.error is not None:
            self._bury(actor, actor.error)
        self.feed()

    def _bury(self, actor: CoreActor, error: BaseException) -> None:
        if actor in self.members:
            self.members.remove(actor)
        self.hub.pools.pop(actor, None)
        self.hub.waiting.pop(actor, None)
        if isinstance(error, ActorStartError):
            self._num_failed_starts += 1
            if error.__cause__ is not None or self._num_failed_starts >= _START_TRIES:
                self._num_failed_starts = 0
                self._fail_queued(error)
        elif self.ordered:
            self.broken = ActorDied(f"service {self.name!r} had state, which is gone: {error}", actor.name)
            self.broken.__cause__ = error
            self._fail_queued(self.broken)
        else:
            self._num_failed_starts = 0
            _log.warning("a worker of service %r died and is replaced: %s", self.name, error)

    def _fail_queued(self, error: BaseException) -> None:
        if self.ordered:
            self.broken = self.broken or error
        queue, self._queue = self._queue, deque()
        for _, future in queue:
            future.fail(error)

    def close(self, error: EngineClosed) -> None:
        """End the workers; calls that are still out fail."""
        self.broken = error
        self._fail_queued(error)
        for actor in self.members:
            actor.on_lost = actor.on_free = None
            self.hub.pools.pop(actor, None)
            self.hub.engine.kill(actor)
        self.members = []


def first_error(actors: list[CoreActor]) -> ActorError | None:
    """Return why one of these could not start, or None."""
    for actor in actors:
        if isinstance(actor.error, ActorError):
            return actor.error
    return None
