"""The inline engine: actors in this process; every call runs at the moment it is sent.

It is the specification of an engine, and the one to use with a debugger. Values still travel as values:
arguments and results are encoded and decoded as they would be between processes, so a program that works here works on
the others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from raceway.engine import _codec
from raceway.engine._calls import ActorContext, copy_buffers, encode_error, run_call
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine._reactor import Reactor
from raceway.engine.base import Actor, AwaitedFutures, Future, Message
from raceway.errors import INTERRUPTS, ActorStartError, DeadlockError


class InlineActor(CoreActor):
    """An actor whose object lives in this process."""

    context = ActorContext(None)
    busy = False
    """Whether one of its calls is running."""
    thread = 0
    """The thread on which that call runs."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.queue: deque[tuple[int, Message]] = deque()
        """Calls that have not started."""


class InlineEngine(EngineCore):
    """Runs every call where and when it is sent.

    >>> with InlineEngine() as engine:
    ...     counter = engine.spawn(list)
    ...     _ = counter.call("append", 1)
    ...     counter.call("__len__").result()
    1
    """

    name = "inline"

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Reactor(clock, background=False), capacity=1)
        self._running: list[InlineActor] = []
        self._runnable: deque[InlineActor] = deque()

    def _new_actor(self, *args: Any) -> InlineActor:
        return InlineActor(self, *args)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, InlineActor)
        try:
            factory, args, kwargs = _codec.decode(copy_buffers(actor.factory))
            actor.context = ActorContext(factory(*args, **kwargs))
        except INTERRUPTS:
            raise
        except Exception as error:
            failure = ActorStartError(f"{actor.name} could not start: {type(error).__name__}: {error}", actor.name)
            failure.__cause__ = error
            self._declare_dead(actor, failure)
        else:
            actor.ready.set_result(True)

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, InlineActor)
        actor.queue.append((id, message))
        self._runnable.append(actor)

    def flush(self) -> None:
        """Run the calls that have been sent. Those of an actor that is running one follow when it is done."""
        while self._runnable:
            actor = self._runnable.popleft()
            if actor.busy:
                continue
            actor.busy, actor.thread = True, threading.get_ident()
            self._running.append(actor)
            try:
                while actor.queue and actor.error is None:
                    self._run(actor, *actor.queue.popleft())
            finally:
                actor.busy = False
                self._running.remove(actor)
                if actor.queue and actor.error is None:
                    self._runnable.append(actor)  # sent by another thread while the actor was busy

    def _run(self, actor: InlineActor, id: int, message: Message) -> None:
        try:
            result = copy_buffers(
                _codec.encode(run_call(actor.context, _codec.decode(message.payload), self._read), "the result")
            )
            failed = False
        except INTERRUPTS:
            raise
        except BaseException as error:
            result, failed = encode_error(error, actor.name, message.method, skip=2), True
        with self.lock:
            self.finished(actor, id, result, failed)
            self.reactor.notify()

    def running_actor(self) -> Actor | None:
        """Return the actor whose call is running, the innermost if calls are nested."""
        return self._running[-1] if self._running else None

    def can_start_call(self, actor: Actor) -> bool:
        """Return whether the actor is idle. Calls run on one stack, so a busy actor cannot start another."""
        assert isinstance(actor, InlineActor)
        return not actor.busy

    def block(
        self, ready: Callable[[], Any], timeout: float | None, awaited: Future[Any] | AwaitedFutures | None = None
    ) -> None:
        """Wait for another thread to complete a future; raise DeadlockError for a call that can never start."""
        actor = awaited.actor if isinstance(awaited, Future) else None
        is_mine = isinstance(actor, InlineActor) and actor.busy and actor.thread == threading.get_ident()
        if is_mine and actor is not None and isinstance(awaited, Future) and not ready():
            raise DeadlockError(
                f"{actor.name} waits for its own call {awaited.method!r}, which can only run after this one"
            )
        until = None if timeout is None else time.monotonic() + timeout
        self.flush()
        while not ready():
            left = None if until is None else max(0.0, until - time.monotonic())
            super().block(lambda: ready() or self._runnable, left, awaited)
            self.flush()  # an actor may have come back from the pause before its restart

    def _end(self, actor: CoreActor) -> None:
        assert isinstance(actor, InlineActor)
        actor.context = ActorContext(None)
        actor.queue.clear()

    def _close(self) -> None:
        pass
