"""The part that all engines share: the life cycle of actors, their calls, waiting, and requests from actors.

An engine adds how actors are started, called and ended (`_launch`, `_transmit`, `_end`, `_close`) and, if stored values
do not stay in the driver's memory, `_to_stored` and `_discard`.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from raceway.checks import check_int
from raceway.engine import _codec
from raceway.engine._calls import ArgRef, copy_buffers, decode_error, encode_error, method_name
from raceway.engine._codec import Payload
from raceway.engine._core_actor import CoreActor as CoreActor
from raceway.engine._deadlines import Deadlines
from raceway.engine._reactor import Reactor
from raceway.engine._value_store import ValueStore
from raceway.engine.base import Actor, AwaitedFutures, CallTarget, Future, Message, Ref, Resources, Restarts
from raceway.errors import (
    ActorDied,
    ActorStartError,
    ConfigError,
    EngineClosed,
    RacewayError,
    SerializationError,
    WaitTimeout,
)

T = TypeVar("T")

_POLL_MASK = 31  # poll for results after every 32nd call


class EngineCore(ValueStore):
    """Base class of the engines; see `base.Engine` for the methods."""

    name = "?"

    def __init__(self, reactor: Reactor, capacity: float) -> None:
        self.uid = f"{self.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        super().__init__(self.uid, reactor.lock)
        self.capacity = capacity
        self.reactor = reactor
        self.clock = reactor.clock
        self.closed = False
        self._actors: dict[int, CoreActor] = {}
        self._deadlines = Deadlines(self)
        self._call_ids = itertools.count(1)
        self._actor_ids = itertools.count(1)
        self._num_sent = 0
        self._handler: Callable[[Actor, Any], Any] | None = None

    # Actors.

    def spawn(
        self,
        factory: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        resources: Mapping[str, float] | Resources | None = None,
        threads: int | None = None,
        restarts: Restarts | None = None,
        start_timeout: float = 60.0,
        returns_queued_calls: bool = False,
    ) -> Actor:
        """Create an actor from `factory(*args, **kwargs)`; see `Engine.spawn`."""
        if not callable(factory):
            raise ConfigError(f"an actor is created by a class or function, not by {factory!r}")
        needs = Resources.of(resources)
        if threads is None:
            threads = max(1, int(needs.cpus or 1))
        check_int("threads", threads)
        self.check_resources(needs)
        payload = _codec.encode((factory, tuple(args), dict(kwargs or {})), "the factory and its arguments, ")
        payload, restarts = copy_buffers(payload), restarts or Restarts()
        with self.lock:
            self._check_open()
            self.handles.sweep()
            number = next(self._actor_ids)
            label = name or f"{getattr(factory, '__name__', type(factory).__name__)}-{number}"
            actor = self._new_actor(label, payload, needs, threads, restarts, start_timeout, returns_queued_calls)
            self._launch(actor)
            self._actors[number] = actor
        return actor

    def check_resources(self, needs: Resources) -> None:
        """Raise ResourceError if the engine can never provide these resources."""

    def kill(self, actor: Actor) -> None:
        """End an actor at once."""
        with self.lock:
            self._declare_dead(self._own(actor), ActorDied(f"{actor.name} was killed by its driver", actor.name))

    def restart(self, actor: Actor, policy: Restarts | None = None) -> Future[bool]:
        """Build an actor again, after its back-off and within its restart budget."""
        with self.lock:
            self._check_open()
            self.handles.sweep()
            core = self._own(actor)
            if core.error is None:
                self._declare_dead(core, ActorDied(f"{actor.name} was killed for a restart", actor.name))
            now = self.clock()
            pause = core.begin_incarnation(now, policy or core.restarts)
            if pause:
                incarnation = core.incarnation
                core.awaits_restart = True
                self.call_at(now + pause, lambda: self._end_pause(core, incarnation))
            else:
                self._relaunch(core)
            return core.ready

    def _end_pause(self, actor: CoreActor, incarnation: int) -> None:
        if not self.closed and actor.error is None and actor.incarnation == incarnation:
            actor.awaits_restart = False
            self._relaunch(actor)
            for id, (_, message) in list(actor.calls.items()):
                self._transmit(actor, id, message)

    def _relaunch(self, actor: CoreActor) -> None:
        try:
            self._launch(actor)
        except (RacewayError, OSError) as error:
            failure = ActorStartError(f"{actor.name} could not be restarted: {error}", actor.name)
            failure.__cause__ = error
            self._declare_dead(actor, failure)

    def _declare_dead(self, actor: CoreActor, error: BaseException) -> None:
        """Mark an actor as dead, end it and fail or return its calls. Called with the lock."""
        if actor.error is not None:
            return
        actor.error = error
        if actor.awaits_restart:
            actor.awaits_restart = False  # it was not launched, so there is nothing to end
        else:
            self._end(actor)
        self.handles.remove_worker(actor)
        calls, actor.calls = list(actor.calls.values()), {}
        was_ready = actor.ready.done()
        if not was_ready:
            actor.ready.fail(error)
        not_started = []
        if actor.on_calls_returned is not None:
            num_started = min(len(calls), 1) if was_ready else 0
            calls, not_started = calls[:num_started], calls[num_started:]
        for index, (future, _) in enumerate(calls):
            future.started = index == 0 and was_ready
            future.fail(error)
        if actor.on_calls_returned is not None:
            actor.on_calls_returned(actor, not_started)
        self.reactor.notify()

    # Calls.

    def message(self, method: CallTarget, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Message:
        """Encode a call."""
        self._check_open()
        refs: list[Ref] = []
        kwargs = kwargs or {}
        for arg in itertools.chain(args, kwargs.values()) if kwargs else args:
            if isinstance(arg, Ref):
                refs.append(arg)
        if refs:
            args = [ArgRef(arg.id) if isinstance(arg, Ref) else arg for arg in args]
            kwargs = {key: ArgRef(arg.id) if isinstance(arg, Ref) else arg for key, arg in kwargs.items()}
        try:
            payload = _codec.encode((method, tuple(args), kwargs))
        except SerializationError:
            for place, arg in itertools.chain(enumerate(args), kwargs.items()):
                _codec.encode(arg, f"argument {place!r} of {method_name(method)!r}")
            raise
        message = Message(method_name(method), payload, refs)
        self._detach_arguments(message)
        return message

    def _detach_arguments(self, message: Message) -> None:
        """Copy memory that belongs to the caller, who may write to it afterwards."""
        message.payload = copy_buffers(message.payload)

    def send(
        self,
        actor: Actor,
        message: Message,
        *,
        timeout: float | None = None,
        on_done: Callable[[Future[Any]], None] | None = None,
    ) -> Future[Any]:
        """Send a call to an actor and return its future."""
        future: Future[Any] = Future(self, actor, message.method, timeout, on_done)
        with self.lock:
            self.dispatch(actor, message, future)
        self.flush()
        return future

    def call(self, actor: Actor, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method: short for `send(actor, message(method, args, kwargs))`."""
        return self.send(actor, self.message(method, args, kwargs))

    def dispatch(self, actor: Actor, message: Message, future: Future[Any]) -> None:
        """Send a call whose future exists already. Called with the lock; call `flush` after releasing it."""
        core = self._own(actor)
        self._check_open()
        if self.handles.dropped:
            self.handles.sweep()
        if core.error is not None:
            future.fail(core.error)
            return
        future.actor = core
        id = next(self._call_ids)
        core.calls[id] = (future, message)
        if future.timeout is not None and len(core.calls) == 1:
            self._deadlines.start(core, id)
        if core.awaits_restart:
            return
        try:
            self._transmit(core, id, message)
        except RacewayError as error:
            core.calls.pop(id, None)
            future.fail(error)

    def flush(self) -> None:
        """Finish sending: after every 32nd call, poll for results. Called without the lock."""
        self._num_sent += 1
        if not self._num_sent & _POLL_MASK:
            self.poll()

    def finished(self, actor: CoreActor, id: int, payload: Payload, failed: bool) -> None:
        """Complete the future of a call with its reply. Called with the lock."""
        entry = actor.calls.pop(id, None)
        if entry is None:
            return
        if failed:
            entry[0].fail(lambda: decode_error(payload))
        else:
            entry[0].set_encoded(payload)
        self._deadlines.start_first(actor)
        if actor.on_call_done is not None:
            actor.on_call_done(actor)

    def running_actor(self) -> Actor | None:
        """Return the actor whose call runs on this thread: none, as actors run in other processes."""
        return None

    def can_start_call(self, actor: Actor) -> bool:
        """Return whether a call sent to the actor now could run before the calls under way have ended."""
        return True

    def prefetch(self, actor: Actor, refs: Sequence[Ref]) -> None:
        """Send an actor stored values that it is about to read. Called with the lock."""

    # Waiting.

    def block(
        self, ready: Callable[[], Any], timeout: float | None, awaited: Future[Any] | AwaitedFutures | None = None
    ) -> None:
        """Return when `ready()` is true; raise WaitTimeout after `timeout` seconds."""
        self._block(ready, timeout, timeout, awaited)

    def _block(self, ready: Callable[[], Any], left: float | None, timeout: float | None, awaited: Any) -> None:
        """Wait for the `left` seconds of a caller's `timeout`."""
        if not self.reactor.wait(ready, left):
            subject = f"{awaited} is" if isinstance(awaited, Future) else "the futures are"
            raise WaitTimeout(f"{subject} not done after {timeout:g} s; the work continues")

    def wait(
        self, futures: Sequence[Future[T]], *, count: int | None = None, timeout: float | None = None
    ) -> tuple[list[Future[T]], list[Future[T]]]:
        """Block until `count` (default: all) of the futures are done."""
        futures = list(futures)
        num_left = len(futures) if count is None else count
        if not 0 <= num_left <= len(futures):
            raise ConfigError(f"count must be between 0 and the {len(futures)} futures passed, not {count!r}")

        def count_down(_: object) -> None:
            nonlocal num_left
            num_left -= 1

        for future in futures:
            future.add_done_callback(count_down)
        try:
            self.block(lambda: num_left <= 0, timeout, lambda: ([f for f in futures if not f.done()], num_left))
        except WaitTimeout:
            for future in futures:
                future.remove_done_callback(count_down)
        return [f for f in futures if f.done()], [f for f in futures if not f.done()]

    def poll(self) -> None:
        """Receive results that have arrived, without waiting."""
        self.reactor.poll()

    def wake(self) -> None:
        """Make waiting threads check their condition again; takes no lock."""
        self.reactor.ensure_wake()

    def notify_waiters(self) -> None:
        """Make waiting threads check their condition again. Called with the lock."""
        self.reactor.notify()

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback()` once, with the lock, when the clock has reached `when`. Called with the lock."""
        self.reactor.call_at(when, callback)

    def create_future(self) -> Future[Any]:
        """Return a future that the caller completes with `complete`."""
        return Future(self, None, "create_future")

    def complete(self, future: Future[Any], value: object) -> None:
        """Set the result of a future from `create_future`, on any thread."""
        with self.lock:
            future.set_result(value)
            self.reactor.notify()

    # Requests from actors.

    def serve(self, handler: Callable[[Actor, Any], Any]) -> None:
        """Answer the requests that actors make of the driver."""
        self._handler = handler

    def answer(self, actor: CoreActor, request: Any, reply: Callable[[Payload, bool], None]) -> None:
        """Run the handler; call `reply(payload, failed)` when it, or the future it returned, is done.

        Called with the lock.
        """

        def reply_with(future: Future[Any]) -> None:
            # Not raised: a traceback would keep the frames, and with them this request, as long as the error is kept.
            failure = future.exception()
            try:
                payload = _codec.encode(future.result()) if failure is None else None
            except Exception as error:
                failure = error
            if failure is not None:
                reply(encode_error(failure, actor.name, "request", 0), True)
            elif payload is not None:
                reply(payload, False)

        try:
            if self._handler is None:
                raise RacewayError("the driver does not answer requests: this engine has no Runner")
            answer = self._handler(actor, request)
        except Exception as error:
            reply(encode_error(error, actor.name, "request"), True)
            return
        if not isinstance(answer, Future):
            completed = self.create_future()
            completed.set_result(answer)
            answer = completed
        elif not answer.done():
            self._deadlines.pause_until(answer, actor)
        answer.add_done_callback(reply_with)

    # Closing.

    def close(self) -> None:
        """End every actor and release everything."""
        if self.closed:  # without the lock: in a forked child, a thread that no longer exists may hold it
            return
        with self.lock:
            if self.closed:
                return
            self.closed = True
            error = EngineClosed(f"the {self.name} engine was closed")
            for actor in self._actors.values():
                actor.on_calls_returned = None
                self._declare_dead(actor, error)
        self._close()
        self.reactor.close()
        self._stored.clear()
        self.handles.unregister()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise EngineClosed(f"the {self.name} engine is closed")

    def _own(self, actor: Actor) -> CoreActor:
        if not isinstance(actor, CoreActor) or actor.core is not self:
            raise ConfigError(f"{actor!r} is not an actor of this engine")
        return actor

    # Methods that an engine overrides. All but `_close` are called with the lock.

    def _new_actor(self, *args: Any) -> CoreActor:
        """Return the engine's kind of actor; the arguments are those of CoreActor after `engine`."""
        return CoreActor(self, *args)

    def _launch(self, actor: CoreActor) -> None:
        """Start an actor, for the first time or again."""
        raise NotImplementedError

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        """Send a call to an actor's process."""
        raise NotImplementedError

    def _end(self, actor: CoreActor) -> None:
        """End an actor's process and release the resources that the driver shares with it."""
        raise NotImplementedError

    def _reply_arrived(self, actor: CoreActor, id: int) -> bool:
        """Read replies that have arrived; return whether that of this call was among them."""
        return False

    def _close(self) -> None:
        """Release the engine's resources, after its actors have ended."""
        raise NotImplementedError
