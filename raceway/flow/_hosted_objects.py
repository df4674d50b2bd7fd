"""Guests: further objects in an actor's process, such as a flow's shards, recreated when the actor is restarted.

An engine's call can name a function instead of a method. It runs in the actor's process with `context.object`, the
actor's own object, and `context.guests`, a dict of other objects. A `Guest` is the driver's handle to one of these, and
applies the failure policy when its actor dies or the guest raises.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from raceway.engine.base import Actor, ActorContext, Future, Message, Restarts
from raceway.errors import (
    ActorDied,
    ActorError,
    FlowError,
    OperatorError,
    RestartsExhausted,
    SerializationError,
    ShardFailed,
)
from raceway.flow._failures import Failures

_OPEN_DEADLINE_FACTOR = 10  # restoring a guest may repeat much work


class Guest:
    """The driver's handle to a further object in an actor's process. `name` is used in errors."""

    def __init__(self, actor: Actor, key: str, name: str, failures: Failures) -> None:
        self.actor = actor
        self.engine = actor.engine
        self.key = key
        self.name = name
        self.failures = failures
        self.dropped = False
        self.ended = False
        """Whether its stream has ended."""
        self.outstanding: deque[Future[Any]] = deque()
        """Requests whose answers have not been received, in order."""
        self.num_held = 0
        """Items that the guest has read and not passed on: lost if it dies."""
        self.hosts: Sequence[Actor] = ()
        """The actors that it may move to, because it can be recreated on any of them; none if it stays where it is."""
        self.feeder: Any = None
        """The `Feeder` that sends it items to work on; None if it has a source of its own."""
        self.regenerates_lost_items = False
        """Whether items that were requested and lost are produced again after a restart."""
        self.request: Message
        """A call of the guest's method `pull`, encoded once."""
        self._opening: Future[Any]
        self._incarnation = 0  # of the actor, when the guest was created
        self.restart_results: Any = None
        """What `on_restart` returned, until the first answer of the recreated guest has arrived."""

    def start(self) -> None:
        """Call `open`, for the first time or after a restart."""
        raise NotImplementedError

    def open(self, factory: Callable[..., Any], *args: Any, parts: Mapping[str, Any] | None = None) -> None:
        """Create the guest in the actor as `factory(context, *args)`.

        If the arguments cannot be sent, the error names the first of `parts` that cannot.
        """
        deadline = self.failures.deadline and _OPEN_DEADLINE_FACTOR * self.failures.deadline
        try:
            message = self.engine.message(_open, (self.key, factory, *args))
            self._opening = self.engine.send(self.actor, message, timeout=deadline)
        except SerializationError:
            for name, part in (parts or {}).items():
                try:
                    self.engine.message(name, (part,))
                except SerializationError as error:
                    raise FlowError(f"{name} cannot be sent to {self.actor.name}: {error}") from error
            raise
        self.request = self.engine.message((self.key, "pull"))
        self._incarnation = self.actor.incarnation

    def call(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the guest. The result is None if the guest no longer exists."""
        return self.engine.send(
            self.actor, self.engine.message((self.key, method), args), timeout=self.failures.deadline
        )

    def result_or_error(self, future: Future[Any]) -> Any:
        """Return the result of a finished call, or the error of the call or of what `on_restart` sent before it."""
        error = future.exception()
        if error is None and self.restart_results is not None:
            results, self.restart_results = self.restart_results, None
            for result in results if isinstance(results, (list, tuple)) else [results]:
                error = error or (result.exception() if isinstance(result, Future) else None)
        if error is not None:
            return error
        answer = future.result()
        if answer is None:
            return self._opening.exception() or ActorDied(
                "another user of the actor restarted it, which ended this guest", self.actor.name
            )
        return answer

    def handle_failure(self, error: BaseException, may_drop: bool = False) -> str:
        """Apply the failure policy. Return `restarted` (the guest must be started again) or `dropped`, or raise."""
        failures = self.failures
        if isinstance(error, (ActorError, OperatorError) if failures.errors else ActorError):
            if failures.policy == "drop" and may_drop:
                self.dropped = self.ended = True
                return "dropped"
            if failures.policy == "restart":
                self._restart(error)
                try:
                    self.restart_results = failures.on_restart(self.actor) if failures.on_restart else None
                except Exception as failure:
                    reason = f"{type(failure).__name__}: {failure}"
                    raise ShardFailed(f"on_restart raised for {self.name}: {reason}") from failure
                return "restarted"
        if isinstance(error, OperatorError):
            raise error from error.original
        raise ShardFailed(f"{self.name} on {self.actor.name} failed: {type(error).__name__}: {error}") from error

    def _restart(self, error: BaseException) -> None:
        if self.actor.incarnation != self._incarnation and self.actor.alive:
            return  # it was restarted already, for another of its guests
        try:
            self.engine.restart(self.actor, Restarts(budget=self.failures.budget, window=self.failures.window))
        except RestartsExhausted as exhausted:
            raise ShardFailed(f"{self.name} failed and the restart budget is used up: {exhausted}") from error

    @property
    def can_move(self) -> bool:
        """Whether nothing binds it to its actor: no outstanding request, no items read, no message of `on_restart`."""
        return not (self.outstanding or self.num_held or self.restart_results is not None)

    def move(self, actor: Actor) -> None:
        """Recreate the guest on another actor."""
        self.close()
        self.actor, self.engine = actor, actor.engine
        self.start()

    @property
    def reachable(self) -> bool:
        """Whether its actor can be called."""
        return self.actor.alive and not self.engine.closed

    def close(self) -> None:
        """Close and delete the guest."""
        if self.reachable:
            self.engine.send(self.actor, self.engine.message(_close, (self.key,)))


class ThreadGuest:
    """Like a Guest, for an object that is used on a dedicated thread of the driver.

    A thread cannot be stopped in the middle of a call. So closing detaches it: it ends after its current call, whose
    result nobody receives. The interpreter waits for it for at most `EXIT_SECONDS` when it exits.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, factory: Callable[..., Any], *args: Any) -> None:
        """Start the thread, which creates the guest as `factory(context, *args)`."""
        create = partial(factory, ActorContext(None), *args)
        self._thread = threading.Thread(target=_work, args=(create, self._calls), name="raceway-guest", daemon=True)
        _RUNNING[self._thread] = self
        self._thread.start()

    def call(self, method: str, *args: Any) -> Any:
        """Call a method of the guest on its thread. Return a future."""
        future: ThreadFuture[Any] = ThreadFuture()
        self._calls.put((future, method, args))
        return future

    def result_or_error(self, future: Any) -> Any:
        """Return the result of a finished call, or its error."""
        return future.exception() or future.result()

    def handle_failure(self, error: BaseException) -> str:
        """Raise the error: an operator in the driver's process cannot be restarted."""
        raise error

    def close(self) -> None:
        """Cancel the calls that have not started, and detach the thread."""
        with suppress(Empty):
            while (call := self._calls.get_nowait()) is not None:
                call[0].cancel()
        self._calls.put(None)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the current call after closing."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)


_Call = tuple[ThreadFuture[Any], str, tuple[Any, ...]]

EXIT_SECONDS = 5.0
"""How long the interpreter waits, when it exits, for the calls on threads."""
_RUNNING: dict[threading.Thread, ThreadGuest] = {}


@atexit.register
def _end_threads() -> None:
    """End the threads while they can still run: finalisation stops them, which aborts the process inside of torch."""
    deadline = time.monotonic() + EXIT_SECONDS
    guests = [*_RUNNING.values()]
    for guest in guests:
        guest.close()
    with suppress(KeyboardInterrupt):
        for guest in guests:
            guest.join(max(0.0, deadline - time.monotonic()))


def _work(create: Callable[[], Any], calls: SimpleQueue[_Call | None]) -> None:
    """Create a guest, and execute its calls until None arrives."""
    guest: Any = None
    try:
        while (call := calls.get()) is not None:
            future, method, args = call
            if future.set_running_or_notify_cancel():
                try:
                    guest = create() if guest is None else guest
                    result = getattr(guest, method)(*args)
                except BaseException as error:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del call, future, args  # while the thread waits, it keeps nothing alive
    finally:
        del _RUNNING[threading.current_thread()]


# Functions that are sent to actors and run there.


def _open(context: ActorContext, key: str, factory: Callable[..., Any], *args: Any) -> None:
    context.guests[key] = factory(context, *args)


def _close(context: ActorContext, key: str) -> None:
    guest = context.guests.pop(key, None)
    if guest is not None:
        guest.close()
