"""The interface of an engine: every method, attribute and type that the layers above use.

An engine is a place where actors live. An actor is any Python object; a call names one of its methods and returns a
`Future`. Three engines fulfil the contract: `inline` (this process, synchronous), `process` (this machine) and `ray` (a
cluster). A fourth needs nothing but this file: a class with the members of `Engine`, whose `spawn` returns
instances of `Actor`. `_core.EngineCore` implements most of them for an engine that can start, call and end a process.

Verbs for programs:

    spawn          create an actor from a class or function and its arguments
    message        encode a call once, to send it to any number of actors
    send           call a method of an actor (`call` for short); returns a future
    put            store a value once for many readers; returns a reference
    get            read a reference or wait for a future
    wait           block until some of many futures are done
    create_future  return a future that the program completes itself, with `complete`
    poll           receive results that have arrived, without waiting
    kill, restart  end an actor; build it again within its restart budget
    close          end every actor and release everything

Verbs for the layers above (flow, runner):

    block, wake, notify_waiters   wait for any condition, and make waiting threads check theirs again
    call_at                       run a callback at a time of the engine's clock
    dispatch, flush               send a call whose future exists already, with the lock held
    store, fill, decode           stored values in encoded form
    prefetch                      send stored values ahead of the call that reads them
    serve                         answer the requests from actors
    check_resources, running_actor, can_start_call     check what can run now

Values that are sent to actors follow the rules of `encode`; a `Handle` refers to a thing that the driver keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from raceway.engine._calls import ActorContext as ActorContext
from raceway.engine._codec import Payload as Payload
from raceway.engine._codec import encode as encode
from raceway.engine._codec import register_handle as register_handle
from raceway.engine._future import FAILED as FAILED
from raceway.engine._future import PENDING as PENDING
from raceway.engine._future import Future as Future
from raceway.engine._reference_counts import DriverHandles as DriverHandles
from raceway.engine._reference_counts import Handle as Handle
from raceway.engine._reference_counts import rebuild_handle as rebuild_handle
from raceway.errors import ConfigError, SerializationError

T = TypeVar("T")
E = TypeVar("E", bound="Engine")

CallTarget = str | tuple[str, str] | Callable[..., Any]
"""What a call runs: a method of the actor's object, a guest's method (both names), or a function of an ActorContext."""
AwaitedFutures = Callable[[], "tuple[Sequence[Future[Any]], int] | None"]
"""Returns futures and how many of them must be done before anything else can happen, or None if anything can."""


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """Restart budget of an actor, and the pauses between restarts."""

    budget: int = 3
    """Restarts allowed within `window` seconds."""
    window: float = 60.0
    """Seconds after which a restart no longer counts."""
    backoff: float = 0.05
    """Seconds before the second restart in a row; doubled for each further one. The first is immediate."""
    max_backoff: float = 5.0
    """The longest pause. Restarts are in a row if they are less than twice this time apart."""


@dataclass(frozen=True)
class Resources:
    """Resources that an actor needs: the keys of `resources=`."""

    cpus: float | None = None
    gpus: float = 0.0
    custom: Mapping[str, float] | None = None

    @classmethod
    def of(cls, amounts: Mapping[str, float] | Resources | None) -> Resources:
        """Read `resources={"cpus": 0.5, "gpus": 1, "custom-name": 2}`.

        >>> Resources.of({"cpus": 2})
        Resources(cpus=2, gpus=0.0, custom=None)
        """
        if amounts is None or isinstance(amounts, Resources):
            return amounts or cls()
        for name, amount in amounts.items():
            if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not 0 <= amount < float("inf"):
                raise ConfigError(f"resources[{name!r}] must be a number that is not negative, not {amount!r}")
        custom = {name: float(amount) for name, amount in amounts.items() if name not in ("cpus", "gpus")}
        return cls(amounts.get("cpus"), amounts.get("gpus", 0.0), custom or None)


class Ref(Handle):
    """A value stored with `put`. As an argument of a call it arrives as the value; in a container it stays a Ref."""

    __slots__ = ()

    def get(self) -> Any:
        """Read the value, in the driver or in an actor."""
        return self.table.read(self.id)


class Message:
    """A call, encoded once: it can be sent to any number of actors."""

    __slots__ = ("__weakref__", "method", "payload", "refs", "wire")

    def __init__(self, method: str, payload: Payload, refs: list[Ref]) -> None:
        self.method = method
        self.payload = payload
        self.refs = refs
        self.wire: Any = None  # the engine's own representation, set when the message is encoded


class Actor:
    """An object that lives in an engine. Its calls run one at a time, in the order sent."""

    def __init__(self, engine: Engine, name: str, returns_queued_calls: bool = False) -> None:
        self.engine = engine
        self.name = name
        self.incarnation = 0
        """Number of restarts: 0 until the first one."""
        self.ready: Future[bool] = Future(engine, self, "__init__")
        """Done when the constructor has returned, or failed."""
        self.error: BaseException | None = None
        """Why the actor is dead, or None while it lives."""
        self.pid: int | None = None
        """The process it runs in, if the engine knows."""
        self.notes: dict[str, Any] = {}
        """Data that the layers above attach to the actor."""
        self.calls: dict[int, tuple[Future[Any], Message]] = {}
        """Outstanding calls by id, in the order sent. The first one is running."""
        self.last_micros = 0
        """Duration of its last call, if the engine knows."""
        self.returns_queued_calls = returns_queued_calls
        """Whether calls that have not started are returned while the running one waits for nested calls."""
        self.on_calls_returned: Callable[[Actor, list[tuple[Future[Any], Message]]], None] | None = None
        """Receives the calls that had not started when the actor died, or that are returned while it waits."""
        self.on_call_done: Callable[[Actor], None] | None = None
        """Called after each call that is done."""

    @property
    def alive(self) -> bool:
        """Whether the actor accepts calls."""
        return self.error is None

    def call(self, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method; `actor.call("add", 1, 2)` runs `object.add(1, 2)` where the actor lives."""
        return self.engine.send(self, self.engine.message(method, args, kwargs))

    def __repr__(self) -> str:
        return f"<Actor {self.name}{'' if self.alive else ' (dead)'}>"

    def __reduce__(self) -> Any:
        raise SerializationError(f"{self!r} cannot be sent to another process: only its driver can call it")


@runtime_checkable
class Engine(Protocol):
    """A place where actors live."""

    name: str
    """`inline`, `process`, `ray`: shown in errors and logs."""
    uid: str
    """A unique name, different from that of any other engine in any process."""
    capacity: float
    """CPU cores available to actors."""
    clock: Callable[[], float]
    """The source of time for deadlines and back-off."""
    closed: bool
    """Whether `close` was called."""
    lock: Any
    """The lock that guards everything an engine keeps. Callbacks run with it held; it is re-entrant."""
    handles: DriverHandles
    """The references to things that the driver keeps for actors."""

    # Verbs for programs.

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
        """Create an actor from `factory(*args, **kwargs)`, without waiting for it. Calls may be sent at once.

        Args:
            factory: a class or function; what it returns is the actor's object.
            args: its positional arguments.
            kwargs: its keyword arguments.
            name: shown in errors and logs.
            resources: `cpus` (fractions too), `gpus`, and on Ray custom names.
            threads: compute threads; 1 unless several cpus are requested.
            restarts: restart budget and back-off.
            start_timeout: seconds that the constructor may take.
            returns_queued_calls: while a call of the actor waits for nested calls, pass those that have not started to
                its `on_calls_returned`.
        """

    def message(self, method: CallTarget, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Message:
        """Encode a call. The actor sees the arguments as they are now.

        Args:
            method: the name of a method of the actor's object; or a function `f(context, *args, **kwargs)` to run where
                the actor lives, with its object as `context.object`, and `context.guests`, a dict of other objects; or
                the name of a guest and of a method of it, which returns None if there is no such guest.
            args: positional arguments.
            kwargs: keyword arguments.
        """

    def send(
        self,
        actor: Actor,
        message: Message,
        *,
        timeout: float | None = None,
        on_done: Callable[[Future[Any]], None] | None = None,
    ) -> Future[Any]:
        """Send a call to an actor and return its future.

        Args:
            actor: the actor that runs it.
            message: the call.
            timeout: its deadline: seconds that it may run before the actor is killed, from the start of its execution
                and without the time in which it waits for an answer of the driver.
            on_done: a callback of the future; cheaper than `add_done_callback` after sending.
        """

    def call(self, actor: Actor, method: str, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call a method: short for `send(actor, message(method, args, kwargs))`."""

    def put(self, value: object) -> Ref:
        """Store a value once; every actor that gets the reference as an argument reads the same memory."""

    def get(self, source: Ref | Future[Any], timeout: float | None = None) -> Any:
        """Read a reference or wait for a future."""

    def wait(
        self, futures: Sequence[Future[T]], *, count: int | None = None, timeout: float | None = None
    ) -> tuple[list[Future[T]], list[Future[T]]]:
        """Block until `count` (default: all) futures are done; return the done and the pending ones, in order."""

    def poll(self) -> None:
        """Receive results that have arrived, without waiting: for a program that computes for long between waits."""

    def create_future(self) -> Future[Any]:
        """Return a future that the caller completes with `complete`: for queues and threads of the driver."""

    def complete(self, future: Future[Any], value: object) -> None:
        """Set the result of a future from `create_future`, on any thread."""

    def kill(self, actor: Actor) -> None:
        """End an actor at once. Its outstanding calls fail with ActorDied."""

    def restart(self, actor: Actor, policy: Restarts | None = None) -> Future[bool]:
        """Build an actor again (killing it if it lives), after its back-off and within its restart budget.

        Return its new `ready`. The budget is the actor's, or `policy`'s.
        """

    def close(self) -> None:
        """End every actor and release everything. Outstanding calls fail with EngineClosed."""

    def __enter__(self: E) -> E:
        """Return the engine."""

    def __exit__(self, *_: object) -> None:
        """Close the engine."""

    # Verbs for the layers above.

    def block(
        self, ready: Callable[[], Any], timeout: float | None, awaited: Future[Any] | AwaitedFutures | None = None
    ) -> None:
        """Return when `ready()` is true; raise WaitTimeout after `timeout` seconds.

        Args:
            ready: the condition. It is checked again whenever something has happened.
            timeout: seconds, or None to wait without a limit.
            awaited: the future that is waited for, or a function that returns the futures without which `ready` cannot
                become true; some engines wait for these faster.
        """

    def wake(self) -> None:
        """Make waiting threads check their condition again. Takes no lock: callbacks of other engines may call it."""

    def notify_waiters(self) -> None:
        """Make waiting threads check their condition again. Called with the lock."""

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback()` once, with the lock, when the clock has reached `when`. Called with the lock."""

    def dispatch(self, actor: Actor, message: Message, future: Future[Any]) -> None:
        """Send a call whose future exists already. Called with the lock; call `flush` after releasing it."""

    def flush(self) -> None:
        """Finish sending: sometimes poll for results; on the inline engine, run the calls. Called without the lock."""

    def store(self, payload: Payload | None) -> Ref:
        """Store an encoded value; None reserves a reference for `fill`. Called with the lock."""

    def fill(self, ref: Ref, payload: Payload) -> None:
        """Set the value of a reserved reference. Called with the lock."""

    def decode(self, payload: Payload) -> Any:
        """Decode a value that has arrived."""

    def prefetch(self, actor: Actor, refs: Sequence[Ref]) -> None:
        """Send an actor stored values that it is about to read. Called with the lock."""

    def serve(self, handler: Callable[[Actor, Any], Any]) -> None:
        """Answer the requests that actors make of the driver: `handler(actor, request)` returns a value or a future."""

    def check_resources(self, needs: Resources) -> None:
        """Raise ResourceError if the engine can never provide these resources."""

    def running_actor(self) -> Actor | None:
        """Return the actor whose call runs on this thread, if actors run in this process (inline)."""

    def can_start_call(self, actor: Actor) -> bool:
        """Return whether a call sent to the actor now could run before the calls under way have ended."""
