"""What an engine is: the verbs that everything above is written in.

An engine is a place where actors live. An actor is any Python object; a call names one of its methods and gives a
`Future`. There are three engines with one contract: `inline` (this process, one thing after another), `process` (this
machine) and `ray` (a cluster). The verbs:

    spawn    make an actor from a class or function and its arguments
    send     call a method of it (`call` for short); gives a future
    put      store a value once for many readers; gives a reference
    get      read a reference or a future
    wait     block until some of many futures are done
    close    end every actor and give everything back
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from raceway.engine._calls import Home as Home
from raceway.engine._codec import Payload
from raceway.engine._handles import Handle
from raceway.errors import Cancelled, ConfigError, RacewayError, SerializationError

T = TypeVar("T")

_log = logging.getLogger(__name__)

Called = str | tuple[str, str] | Callable[..., Any]
Among = Callable[[], "tuple[Sequence[Future[Any]], int] | None"]
"""Returns futures, and how many of them must be done before anything else can happen; or None if anything can."""

_PENDING, _ENCODED, _VALUE, _FAILED = range(4)


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How often an actor may be restarted, and how long to wait before each time."""

    budget: int = 3
    """Restarts allowed within `window` seconds."""
    window: float = 60.0
    """Seconds after which a restart is forgotten."""
    backoff: float = 0.05
    """Seconds before the second restart in a row; doubled for each further one. The first is at once."""
    backoff_most: float = 5.0
    """The longest wait. Restarts are in a row if less than twice that is between them."""


@dataclass(frozen=True)
class Resources:
    """What an actor needs: the keys of `resources=`."""

    cpus: float | None = None
    gpus: float = 0.0
    custom: Mapping[str, float] | None = None

    @classmethod
    def of(cls, given: Mapping[str, float] | Resources | None) -> Resources:
        """Read `resources={"cpus": 0.5, "gpus": 1, "custom-name": 2}`.

        >>> Resources.of({"cpus": 2})
        Resources(cpus=2, gpus=0.0, custom=None)
        """
        if given is None or isinstance(given, Resources):
            return given or cls()
        for key, amount in given.items():
            if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not 0 <= amount < float("inf"):
                raise ConfigError(f"resources[{key!r}] must be a number that is not negative, not {amount!r}")
        rest = {key: float(amount) for key, amount in given.items() if key not in ("cpus", "gpus")}
        return cls(given.get("cpus"), given.get("gpus", 0.0), rest or None)


class Ref(Handle):
    """A value stored with `put`. As an argument of a call it arrives as the value; in a container it stays a Ref."""

    __slots__ = ()

    def get(self) -> Any:
        """Read the value (in the driver or in an actor)."""
        return self._table.read(self.id)


class Message:
    """A call, encoded once: it can be sent to any number of actors."""

    __slots__ = ("__weakref__", "method", "payload", "refs", "wire")

    def __init__(self, method: str, payload: Payload, refs: list[Ref]) -> None:
        self.method = method
        self.payload = payload
        self.refs = refs
        self.wire: Any = None  # the engine's own form of it, made when it is first sent


class Future(Generic[T]):
    """The result of a call, now or later. Safe to wait for from several threads."""

    __slots__ = (
        "__weakref__",
        "_content",
        "_engine",
        "_listeners",
        "_state",
        "actor",
        "cancel_hook",
        "method",
        "started",
        "timeout",
    )

    def __init__(
        self,
        engine: Waiting,
        actor: Actor | None = None,
        method: str = "",
        timeout: float | None = None,
        told: Callable[[Future[T]], None] | None = None,
    ) -> None:
        self.actor = actor
        self.method = method
        self.timeout = timeout
        """Seconds that the call may run before its actor is killed."""
        self.started = False
        """After a failure: whether the call may have begun to run."""
        self.cancel_hook: Callable[[Future[T]], bool] | None = None
        self._engine = engine
        self._state = _PENDING
        self._content: Any = None
        self._listeners: list[Callable[[Future[T]], None]] | None = None if told is None else [told]

    def done(self) -> bool:
        """Whether there is a result or a failure."""
        return self._state != _PENDING

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it, or raise what the call raised.

        Raises:
            WaitTimeout: it took longer than `timeout` seconds. The call goes on.
        """
        if self._state == _PENDING:
            self._engine.block(self.done, timeout, self)
        state = self._state
        if state == _ENCODED:
            self.decode()
            if self._state == _FAILED:
                raise self._failure()
        elif state == _FAILED:
            raise self._failure()
        return self._content  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the call raised, or None."""
        if self._state == _PENDING:
            self._engine.block(self.done, timeout, self)
        return self._failure() if self._state == _FAILED else None

    def cancel(self) -> bool:
        """Take the call back if it has not been handed to an actor yet. Return whether that worked."""
        with self._engine.lock:
            if self._state == _PENDING and self.cancel_hook is not None and self.cancel_hook(self):
                self.fail(Cancelled(f"{self!r} was cancelled before it started"))
                return True
            return False

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call `callback(self)` when done: now if it is, else on the thread that takes in the result. Keep it short."""
        with self._engine.lock:
            if self._state == _PENDING:
                if self._listeners is None:
                    self._listeners = []
                self._listeners.append(callback)
                return
        callback(self)

    def remove_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Forget a callback, if it has not been called."""
        with self._engine.lock:
            if self._listeners is not None and callback in self._listeners:
                self._listeners.remove(callback)

    def __await__(self) -> Generator[Any, None, T]:
        """Let a coroutine wait for it: `reply = await actor.call("method")`."""
        import asyncio  # here, because it takes longer to import than the rest of this package

        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[T]) -> None:
            loop.call_soon_threadsafe(event.set)

        self.add_done_callback(tell)
        yield from event.wait().__await__()
        return self.result()

    def __repr__(self) -> str:
        state = ("pending", "done", "done", "failed")[self._state]
        where = f"{self.actor.name}." if self.actor is not None else ""
        return f"<Future {where}{self.method} {state}>"

    def __reduce__(self) -> Any:
        raise SerializationError("a future of an engine cannot be sent to another process. Use the Runner's futures.")

    # The other end: for engines, and for those who make promises. Called with the engine's lock held.

    def resolve(self, payload: Payload) -> None:
        """Set the result, still encoded."""
        self._settle(_ENCODED, payload)

    def fulfil(self, value: T) -> None:
        """Set the result."""
        self._settle(_VALUE, value)

    def fail(self, error: BaseException | Callable[[], BaseException]) -> None:
        """Set the failure, or a function that makes it when it is asked for."""
        self._settle(_FAILED, error)

    def _settle(self, state: int, content: object) -> None:
        if self._state != _PENDING:
            return
        self._content = content
        self._state = state
        self.cancel_hook = None
        listeners, self._listeners = self._listeners, None
        for listener in listeners or ():
            try:
                listener(self)
            except Exception:  # it is not the fault of the others, nor of whoever takes in the result
                _log.exception("a callback of %r failed", self)

    def payload(self) -> Payload | None:
        """Return the result as it came, if nobody has looked at it yet."""
        return self._content if self._state == _ENCODED else None

    def decode(self) -> None:
        """Rebuild the result that has come, ahead of time; if it cannot be, `result` will say so."""
        with self._engine.lock:
            if self._state == _ENCODED:
                try:
                    self._content, self._state = self._engine.decode(self._content), _VALUE
                except Exception as error:
                    self._content, self._state = _undecodable(self, error), _FAILED

    def _failure(self) -> BaseException:
        if not isinstance(self._content, BaseException):
            self._content = self._content()
        return self._content


def _undecodable(future: Future[Any], error: Exception) -> RacewayError:
    failure = SerializationError(
        f"the result of {future!r} arrived but cannot be unpickled here: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure


class Waiting(Protocol):
    """What a future needs of its engine."""

    lock: Any

    def block(self, ready: Callable[[], Any], timeout: float | None, on: Future[Any] | Among | None = None) -> None:
        """Return when `ready()`; raise WaitTimeout if that takes too long.

        Args:
            ready: whether it is over.
            timeout: seconds.
            on: the future that is waited for, or a function that says without which futures nothing can become ready;
                some engines wait for these faster.
        """

    def decode(self, payload: Payload) -> Any:
        """Rebuild a value."""


class Actor:
    """An object that lives in an engine. Its calls run one at a time, in the order sent."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.engine = engine
        self.name = name
        self.incarnation = 0
        """Counts the restarts: 0 for the first life."""
        self.ready: Future[bool] = Future(engine, self, "__init__")
        """Done when the constructor has returned, or failed."""
        self.error: BaseException | None = None
        """Why it is dead, or None while it lives."""
        self.pid: int | None = None
        self.notes: dict[str, Any] = {}
        """What layers above keep with it."""

    @property
    def alive(self) -> bool:
        return self.error is None

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method; `actor.call("add", 1, 2)` runs `object.add(1, 2)` where the actor lives."""
        return self.engine.send(self, self.engine.message(method, args, kwargs))

    def __repr__(self) -> str:
        return f"<Actor {self.name}{'' if self.alive else ' (dead)'}>"

    def __reduce__(self) -> Any:
        raise SerializationError(f"{self!r} cannot be sent to another process: only its driver can call it")


class Engine(Waiting, Protocol):
    """A place where actors live."""

    name: str
    uid: str
    capacity: float
    """Cores that are there to compute with."""
    clock: Callable[[], float]
    closed: bool

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
        """Make an actor of `factory(*args, **kwargs)`, without waiting for it. Calls may be sent at once.

        Args:
            factory: a class or function; what it returns is the actor's object.
            args: its positional arguments.
            kwargs: its keyword arguments.
            name: shown in errors and logs.
            resources: `cpus` (fractions too), `gpus`, and on Ray names of its own.
            threads: compute threads; one unless more cpus are asked for.
            restarts: how often it may be restarted.
            start_timeout: seconds that the constructor may take.
            hands_back: while it waits for a nested call, calls that have not begun go to the actor's `on_lost`.
        """

    def message(self, method: Called, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Message:
        """Encode a call. What the arguments are now is what the actor will see.

        Args:
            method: the name of a method of the actor's object; or a function `f(home, *args, **kwargs)` to run where
                the actor lives, with its object as `home.object`, and `home.guests`, a dict of other objects; or the
                name of one of those guests and of a method of it, which gives None if there is no such guest.
            args: positional arguments.
            kwargs: keyword arguments.
        """

    def send(
        self,
        actor: Actor,
        message: Message,
        *,
        timeout: float | None = None,
        told: Callable[[Future[Any]], None] | None = None,
    ) -> Future[Any]:
        """Run a call.

        Args:
            actor: that runs it.
            message: the call.
            timeout: its deadline: seconds from the start of its execution until the actor is killed.
            told: a callback of the future, there from its beginning, which is cheaper than to add one.
        """

    def call(self, actor: Actor, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Short for `send(actor, message(method, args, kwargs))`."""

    def put(self, value: object) -> Ref:
        """Store a value once; every actor that gets the reference as an argument reads the same memory."""

    def get(self, what: Ref | Future[Any], timeout: float | None = None) -> Any:
        """Read a reference or wait for a future."""

    def wait(
        self, futures: Sequence[Future[T]], *, count: int | None = None, timeout: float | None = None
    ) -> tuple[list[Future[T]], list[Future[T]]]:
        """Block until `count` (default: all) futures are done; return the done and the others, in the order given."""

    def glance(self) -> None:
        """Take in what has come, without waiting: for a program that computes for long and wants news soon."""

    def nudge(self) -> None:
        """Have whoever waits look again at what it waits for. Takes no lock: callbacks of other engines may call it."""

    def promise(self) -> Future[Any]:
        """Return a future that the caller completes with `keep`: for queues and threads of the driver's own."""

    def keep(self, promise: Future[Any], value: object) -> None:
        """Complete a promise, from any thread."""

    def kill(self, actor: Actor) -> None:
        """End an actor at once. Its outstanding calls fail with ActorDied."""

    def restart(self, actor: Actor, policy: Restarts | None = None) -> Future[bool]:
        """Build a dead actor anew, after its back-off and within its budget (its own, or `policy`'s).

        Return its new `ready`.
        """

    def serve(self, handler: Callable[[Actor, Any], Any]) -> None:
        """Answer the requests that actors make of the driver: `handler(actor, request)` gives a value or a future."""

    def close(self) -> None:
        """End every actor, give everything back. Calls that are still out fail with EngineClosed."""
