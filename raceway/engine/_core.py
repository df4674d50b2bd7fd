"""What the engines share: stored values, waiting, deadlines, and the life and death of actors.

An engine adds where an actor runs: `_launch`, `_transmit`, `_end`, and for stored values `_stored` and `_discard`.
"""

from __future__ import annotations

import itertools
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from raceway.checks import check_int
from raceway.engine import _codec
from raceway.engine._calls import ArgRef, describe_error, name_of, owned, revive_error
from raceway.engine._codec import Payload
from raceway.engine._handles import HomeTable
from raceway.engine._reactor import Reactor
from raceway.engine.base import Actor, Among, Called, Future, Message, Ref, Resources, Restarts
from raceway.errors import (
    ActorDied,
    ActorStartError,
    ConfigError,
    DeadlineExceeded,
    EngineClosed,
    ObjectFreed,
    RacewayError,
    RestartsExhausted,
    SerializationError,
    WaitTimeout,
)

T = TypeVar("T")

_GLANCE_MASK = 31  # one in 32 calls sent


class CoreActor(Actor):
    """An actor as its engine sees it."""

    def __init__(
        self,
        engine: EngineCore,
        name: str,
        factory: Payload,
        resources: Resources,
        threads: int,
        restarts: Restarts,
        start_timeout: float,
        hands_back: bool,
    ):
        super().__init__(engine, name)
        self.core = engine
        self.factory = factory
        self.resources = resources
        self.threads = threads
        self.restarts = restarts
        self.start_timeout = start_timeout
        self.calls: dict[int, tuple[Future[Any], Message]] = {}
        """Calls that are out, by id, in the order sent. The first one runs."""
        self.due = (0.0, 0)
        """The deadline of the call that runs, and its id."""
        self.looked_at = math.inf
        """When somebody will see whether that has passed."""
        self.restarted_at: list[float] = []
        self.resting = False
        """Whether it waits to be restarted: calls are kept until it is."""
        self.on_lost: Callable[[CoreActor, list[tuple[Future[Any], Message]]], None] | None = None
        """Takes the calls that had not begun when the actor died (a pool gives them to another)."""
        self.on_free: Callable[[CoreActor], None] | None = None
        """Called when one of its calls is done."""
        self.hands_back = hands_back
        self.last_micros = 0
        """How long its last call ran, where the engine knows."""


class EngineCore:
    """Base of the engines; see `base.Engine` for the verbs."""

    name = "?"

    def __init__(self, reactor: Reactor, capacity: float) -> None:
        self.uid = f"{self.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.capacity = capacity
        self.reactor = reactor
        self.lock = reactor.lock
        self.clock = reactor.clock
        self.closed = False
        self._handles = HomeTable(self.uid)
        self._handles.read = self._read
        self._stored: dict[int, Payload | None] = {}  # None: reserved, not filled yet
        self._actors: dict[int, CoreActor] = {}
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
        hands_back: bool = False,
    ) -> Actor:
        """Make an actor of `factory(*args, **kwargs)`; see `Engine.spawn`."""
        if not callable(factory):
            raise ConfigError(f"an actor is made by a class or function, not by {factory!r}")
        needs = Resources.of(resources)
        if threads is None:
            threads = max(1, int(needs.cpus or 1))
        check_int("threads", threads)
        self._check_resources(needs)
        payload = owned(_codec.encode((factory, tuple(args), dict(kwargs or {})), "the factory and its arguments, "))
        with self.lock:
            self._check_open()
            self._handles.sweep()
            number = next(self._actor_ids)
            label = name or f"{getattr(factory, '__name__', type(factory).__name__)}-{number}"
            actor = self._new_actor(label, payload, needs, threads, restarts or Restarts(), start_timeout, hands_back)
            self._launch(actor)
            self._actors[number] = actor
        return actor

    def _new_actor(self, *parts: Any) -> CoreActor:
        return CoreActor(self, *parts)

    def _check_resources(self, needs: Resources) -> None:
        """Raise ResourceError if they can never be had."""

    def kill(self, actor: Actor) -> None:
        """End an actor at once."""
        with self.lock:
            self._lost(self._own(actor), ActorDied(f"{actor.name} was killed by its driver", actor.name))

    def restart(self, actor: Actor, policy: Restarts | None = None) -> Future[bool]:
        """Build a dead actor anew, after its back-off and within its budget."""
        with self.lock:
            self._check_open()
            self._handles.sweep()
            core = self._own(actor)
            if core.error is None:
                self._lost(core, ActorDied(f"{actor.name} was killed for a restart", actor.name))
            now, policy = self.clock(), policy or core.restarts
            core.restarted_at = [at for at in core.restarted_at if now - at < policy.window]
            num_recent = len(core.restarted_at)
            if num_recent >= policy.budget:
                raise RestartsExhausted(
                    f"{core.name} has been restarted {num_recent} times within {policy.window:g} s, its budget. "
                    f"Last: {core.error}",
                    core.name,
                ) from core.error
            quick = _in_a_row(core.restarted_at, now, 2 * policy.backoff_most)
            core.restarted_at.append(now)
            core.incarnation += 1
            core.error = None
            core.ready = Future(self, core, "__init__")
            wait = min(policy.backoff_most, policy.backoff * 2 ** min(quick - 1, 64)) if quick else 0.0
            if wait:
                incarnation = core.incarnation
                core.resting = True
                self.reactor.at(now + wait, lambda: self._relaunch(core, incarnation))
            else:
                self._launch_or_lose(core)
            return core.ready

    def _launch_or_lose(self, actor: CoreActor) -> None:
        try:
            self._launch(actor)
        except (RacewayError, OSError) as error:
            failure = ActorStartError(f"{actor.name} could not be restarted: {error}", actor.name)
            failure.__cause__ = error
            self._lost(actor, failure)

    def _relaunch(self, actor: CoreActor, incarnation: int) -> None:
        if not self.closed and actor.error is None and actor.incarnation == incarnation:
            actor.resting = False
            self._launch_or_lose(actor)
            for id, (_, message) in list(actor.calls.items()):
                self._transmit(actor, id, message)

    # Calls.

    def message(self, method: Called, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Message:
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
                _codec.encode(arg, f"argument {place!r} of {name_of(method)!r}")
            raise
        message = Message(name_of(method), payload, refs)
        self._seal(message)
        return message

    def _seal(self, message: Message) -> None:
        """Take the message's memory out of the caller's hands."""
        message.payload = owned(message.payload)

    def send(
        self,
        actor: Actor,
        message: Message,
        *,
        timeout: float | None = None,
        told: Callable[[Future[Any]], None] | None = None,
    ) -> Future[Any]:
        """Run a call."""
        future: Future[Any] = Future(self, actor, message.method, timeout, told)
        with self.lock:
            self.dispatch(self._own(actor), message, future)
        self.flush()
        return future

    def flush(self) -> None:
        """Do what sending entails: look in now and then for results; inline, run the calls. Called without the lock."""
        self._num_sent += 1
        if not self._num_sent & _GLANCE_MASK:
            self.glance()

    def glance(self) -> None:
        """Take in what has come, without waiting."""
        self.reactor.glance()

    def nudge(self) -> None:
        """Have whoever waits look again at what it waits for; takes no lock."""
        self.reactor.nudge()

    def call(self, actor: Actor, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Short for `send(actor, message(method, args, kwargs))`."""
        return self.send(actor, self.message(method, args, kwargs))

    def dispatch(self, actor: CoreActor, message: Message, future: Future[Any]) -> None:
        """Hand a call to an actor, to complete a future that is there already. Called with the lock."""
        self._check_open()
        self._handles.sweep()
        if actor.error is not None:
            future.fail(actor.error)
            return
        future.actor = actor
        id = next(self._call_ids)
        actor.calls[id] = (future, message)
        if future.timeout is not None and len(actor.calls) == 1:
            self._arm(actor, id)
        if actor.resting:
            return
        try:
            self._transmit(actor, id, message)
        except RacewayError as error:
            actor.calls.pop(id, None)
            future.fail(error)

    def finished(self, actor: CoreActor, id: int, payload: Payload, failed: bool) -> None:
        """Take in the reply to a call. Called with the lock."""
        entry = actor.calls.pop(id, None)
        if entry is None:
            return
        if failed:
            entry[0].fail(lambda: revive_error(payload))
        else:
            entry[0].resolve(payload)
        self._next(actor)
        if actor.on_free is not None:
            actor.on_free(actor)

    def running(self) -> CoreActor | None:
        """Return the actor whose call runs on this thread, if it runs in this very process (inline)."""
        return None

    def can_begin(self, actor: CoreActor) -> bool:
        """Whether a call sent to the actor now would ever run before those that are under way."""
        return True

    def supply(self, actor: CoreActor, refs: Sequence[Ref]) -> None:
        """Send an actor stored values that it is about to read. Called with the lock."""

    def _next(self, actor: CoreActor) -> None:
        for id, (future, _) in actor.calls.items():
            if future.timeout is not None:
                self._arm(actor, id)
            break

    def _arm(self, actor: CoreActor, id: int) -> None:
        """Start the deadline of the call that runs now."""
        future = actor.calls[id][0]
        assert future.timeout is not None
        if not actor.ready.done():
            actor.ready.add_done_callback(lambda _: self._arm(actor, id) if id in actor.calls else None)
            return
        actor.due = (self.clock() + future.timeout, id)
        if actor.due[0] < actor.looked_at:
            self._set_timer(actor)

    def _set_timer(self, actor: CoreActor) -> None:
        # One timer for an actor, however many of its calls have deadlines; a later one that is due sooner replaces it.
        when = actor.looked_at = actor.due[0]
        self.reactor.at(when, lambda: self._look(actor, when))

    def _look(self, actor: CoreActor, timer: float) -> None:
        """See whether the call that an actor runs is overdue."""
        if timer != actor.looked_at:
            return
        actor.looked_at = math.inf
        when, id = actor.due
        entry = actor.calls.get(id)
        if entry is None:
            return
        if self.clock() < when:  # it runs another by now, which has time left
            self._set_timer(actor)
        elif not self._drained(actor, id):
            ran = f"{actor.name}.{entry[1].method} ran for more than {entry[0].timeout:g} s"
            self._lost(actor, DeadlineExceeded(f"{ran}, so {actor.name} was killed", actor.name))

    def _drained(self, actor: CoreActor, id: int) -> bool:
        """Whether the reply had arrived, only unread."""
        return False

    def _lost(self, actor: CoreActor, error: BaseException) -> None:
        """Declare an actor dead, and make it so. Called with the lock."""
        if actor.error is not None:
            return
        actor.error = error
        if actor.resting:
            actor.resting = False  # there is nothing to end
        else:
            self._end(actor)
        self._handles.peer_gone(actor)
        calls, actor.calls = list(actor.calls.values()), {}
        was_ready = actor.ready.done()
        if not was_ready:
            actor.ready.fail(error)
        spared = []
        if actor.on_lost is not None:
            running = calls[:1] if was_ready else []
            spared = calls[len(running) :]
            calls = running
        for place, (future, _) in enumerate(calls):
            future.started = place == 0 and was_ready
            future.fail(error)
        if actor.on_lost is not None:
            actor.on_lost(actor, spared)
        self.reactor.changed()

    # Stored values.

    def put(self, value: object) -> Ref:
        """Store a value once for many readers."""
        payload = _codec.encode(value)
        with self.lock:
            self._check_open()
            return self.store(payload)

    def store(self, payload: Payload | None) -> Ref:
        """Store an encoded value; None reserves a reference to be filled later. Called with the lock."""
        self._handles.sweep()
        ref = Ref(self._handles, self._handles.new(self._discard))
        self._stored[ref.id] = None
        if payload is not None:
            self.fill(ref, payload)
        return ref

    def fill(self, ref: Ref, payload: Payload) -> None:
        """Give a reserved reference its value. Called with the lock."""
        self._stored[ref.id] = self._kept(payload)

    def _kept(self, payload: Payload) -> Payload:
        """Return the payload in memory that lasts as long as it is stored."""
        return owned(payload)

    def _discard(self, id: int) -> None:
        """Let go of a stored value that nobody refers to."""
        self._stored.pop(id, None)

    def _read(self, id: int) -> Any:
        with self.lock:
            payload = self._stored.get(id)
        if payload is None:
            raise ObjectFreed(f"reference {id} is not stored here any more")
        return self.decode(payload)

    def get(self, what: Ref | Future[Any], timeout: float | None = None) -> Any:
        """Read a reference or wait for a future."""
        return what.result(timeout) if isinstance(what, Future) else what.get()

    def decode(self, payload: Payload) -> Any:
        """Rebuild a value."""
        return _codec.decode(payload)

    # Waiting.

    def block(self, ready: Callable[[], Any], timeout: float | None, on: Future[Any] | Among | None = None) -> None:
        """Return when `ready()`; raise WaitTimeout if that takes too long."""
        if not self.reactor.wait(ready, timeout):
            raise WaitTimeout(
                f"{on if isinstance(on, Future) else 'the futures'} not done after {timeout:g} s; still going on"
            )

    def wait(
        self, futures: Sequence[Future[T]], *, count: int | None = None, timeout: float | None = None
    ) -> tuple[list[Future[T]], list[Future[T]]]:
        """Block until `count` (default: all) of the futures are done."""
        futures = list(futures)
        wanted = len(futures) if count is None else count
        if not 0 <= wanted <= len(futures):
            raise ConfigError(f"count must be between 0 and the {len(futures)} futures given, not {count!r}")
        left = wanted

        def tick(_: object) -> None:
            nonlocal left
            left -= 1

        for future in futures:
            future.add_done_callback(tick)
        try:
            self.block(lambda: left <= 0, timeout, lambda: ([f for f in futures if not f.done()], left))
        except WaitTimeout:
            for future in futures:
                future.remove_done_callback(tick)
        return [f for f in futures if f.done()], [f for f in futures if not f.done()]

    def promise(self) -> Future[Any]:
        """Return a future that the caller completes with `keep`."""
        return Future(self, None, "promise")

    def keep(self, promise: Future[Any], value: object) -> None:
        """Complete a promise, from any thread."""
        with self.lock:
            promise.fulfil(value)
            self.reactor.changed()

    # Requests from actors.

    def serve(self, handler: Callable[[Actor, Any], Any]) -> None:
        """Answer the requests that actors make of the driver."""
        self._handler = handler

    def answer(self, actor: CoreActor, request: Any, reply: Callable[[Payload, bool], None]) -> None:
        """Run the handler; `reply(payload, failed)` once it, or the future it gave, is done. Called with the lock."""

        def finish(future: Future[Any]) -> None:
            try:
                payload = _codec.encode(future.result())
            except Exception as error:
                reply(describe_error(error, actor.name, "request", 0), True)
            else:
                reply(payload, False)

        try:
            if self._handler is None:
                raise RacewayError("this engine's driver answers no requests: no Runner is attached to it")
            answer = self._handler(actor, request)
        except Exception as error:
            reply(describe_error(error, actor.name, "request"), True)
            return
        if not isinstance(answer, Future):
            promise = self.promise()
            promise.fulfil(answer)
            answer = promise
        answer.add_done_callback(finish)

    # The end.

    def close(self) -> None:
        """End every actor, give everything back."""
        if self.closed:  # asked without the lock, which in a forked child may be held by a thread that is not there
            return
        with self.lock:
            if self.closed:
                return
            self.closed = True
            error = EngineClosed(f"the {self.name} engine was closed")
            for actor in self._actors.values():
                actor.on_lost = None
                self._lost(actor, error)
        self._close()
        self.reactor.close()
        self._stored.clear()
        self._handles.forget()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self.closed:
            raise EngineClosed(f"the {self.name} engine is closed")

    def _own(self, actor: Actor) -> CoreActor:
        if not isinstance(actor, CoreActor) or actor.core is not self:
            raise ConfigError(f"{actor!r} is no actor of this engine")
        return actor

    def _launch(self, actor: CoreActor) -> None:
        raise NotImplementedError

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        raise NotImplementedError

    def _end(self, actor: CoreActor) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


def _in_a_row(times: list[float], now: float, gap: float) -> int:
    """Return how many of the last times follow one another, and now, within so many seconds.

    >>> _in_a_row([1.0, 30.0, 35.0], now=39.0, gap=10.0)
    2
    """
    count = 0
    for at in reversed(times):
        if now - at > gap:
            break
        count, now = count + 1, at
    return count
