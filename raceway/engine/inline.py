"""The inline engine: everything in this process, one call after another, at the moment it is sent.

The specification of what an engine does, and what a debugger steps through. Values still travel as values: arguments
and results are encoded and rebuilt as they would be between processes, so a program that works here works on the
others.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from raceway.engine import _codec
from raceway.engine._calls import Home, describe_error, owned, run_call
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine._reactor import Reactor
from raceway.engine.base import Among, Future, Message
from raceway.errors import ActorStartError, DeadlockError


class InlineActor(CoreActor):
    """An actor whose object lives right here."""

    home = Home(None)
    busy = False
    thread = 0
    """On which thread its call runs, while it is busy."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.waiting: deque[tuple[int, Message]] = deque()


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

    def _new_actor(self, *parts: Any) -> InlineActor:
        return InlineActor(self, *parts)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, InlineActor)
        try:
            factory, args, kwargs = _codec.decode(owned(actor.factory))
            actor.home = Home(factory(*args, **kwargs))
        except Exception as error:
            failure = ActorStartError(f"{actor.name} could not start: {type(error).__name__}: {error}", actor.name)
            failure.__cause__ = error
            self._lost(actor, failure)
        else:
            actor.ready.fulfil(True)

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, InlineActor)
        actor.waiting.append((id, message))
        self._runnable.append(actor)

    def flush(self) -> None:
        """Run the calls that have been sent, unless their actor is in the middle of one: then they follow it."""
        while self._runnable:
            actor = self._runnable.popleft()
            if actor.busy:
                continue
            actor.busy, actor.thread = True, threading.get_ident()
            self._running.append(actor)
            try:
                while actor.waiting and actor.error is None:
                    self._run(actor, *actor.waiting.popleft())
            finally:
                actor.busy = False
                self._running.remove(actor)
                if actor.waiting and actor.error is None:
                    self._runnable.append(actor)  # sent by another thread, which saw it busy

    def _run(self, actor: InlineActor, id: int, message: Message) -> None:
        try:
            result = owned(
                _codec.encode(run_call(actor.home, _codec.decode(message.payload), self._read), "the result")
            )
            failed = False
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            result, failed = describe_error(error, actor.name, message.method, skip=2), True
        with self.lock:
            self.finished(actor, id, result, failed)
            self.reactor.changed()

    def running(self) -> CoreActor | None:
        """Return the actor whose call is being run now, if any."""
        return self._running[-1] if self._running else None

    def can_begin(self, actor: CoreActor) -> bool:
        """Return whether it is not in the middle of a call: those that are share a stack, and only the last can end."""
        assert isinstance(actor, InlineActor)
        return not actor.busy

    def block(self, ready: Callable[[], Any], timeout: float | None, on: Future[Any] | Among | None = None) -> None:
        """Wait for another thread's promise; a call that has not run by now waits for the one that asks."""
        actor = on.actor if isinstance(on, Future) else None
        is_mine = isinstance(actor, InlineActor) and actor.busy and actor.thread == threading.get_ident()
        if is_mine and actor is not None and isinstance(on, Future) and not ready():
            raise DeadlockError(f"{actor.name} waits for its own call {on.method!r}, which can only run after this one")
        until = None if timeout is None else time.monotonic() + timeout
        self.flush()
        while not ready():
            left = None if until is None else max(0.0, until - time.monotonic())
            super().block(lambda: ready() or self._runnable, left, on)
            self.flush()  # an actor that was to rest before its restart has come back

    def _end(self, actor: CoreActor) -> None:
        assert isinstance(actor, InlineActor)
        actor.home = Home(None)
        actor.waiting.clear()

    def _close(self) -> None:
        pass
