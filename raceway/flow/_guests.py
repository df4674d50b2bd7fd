"""Guests: objects that live beside an actor's own, and are made anew when the actor has to be restarted.

An engine's call can name a function instead of a method; it runs where the actor lives, with `home.object`, the
actor's own object, and `home.guests`, room for others. A `Guest` is the driver's end of one of those, and says what
happens when its actor dies or it raises.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from raceway.checks import check_int, check_positive, unknown_name
from raceway.engine.base import Actor, Future, Home, Message, Restarts
from raceway.errors import (
    ActorDied,
    ActorError,
    FlowError,
    OperatorError,
    RestartsExhausted,
    SerializationError,
    ShardFailed,
)

_THREAD_NAME = "raceway-guest"
_MAKING = 10  # times as long as a request may take
POLICIES = ("restart", "drop", "raise")


@dataclass(frozen=True, kw_only=True)
class Failures:
    """What to do about a guest whose actor dies, or that raises."""

    policy: str = "raise"
    """`restart` the actor and make the guest anew, `drop` the guest and go on without it, or `raise`."""
    budget: int = 3
    """How often an actor may be restarted within `window` seconds, or how many guests may be dropped."""
    window: float = 60.0
    deadline: float | None = None
    """Seconds that one request may take before the actor is killed."""
    errors: bool = True
    """Whether also what a guest raises counts, or only that its actor died."""
    on_restart: Callable[[Actor], Any] | None = None
    """Called with the actor before its guest is made anew. What it sends is handled first."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown_name("failure policy", self.policy, POLICIES)
        check_int("the budget for failures", self.budget)
        check_positive("window (in seconds)", self.window)
        if self.deadline is not None:
            check_positive("deadline (in seconds)", self.deadline)


class Guest:
    """The driver's end of an object beside an actor's own. `name` is for errors."""

    def __init__(self, actor: Actor, key: str, name: str, failures: Failures) -> None:
        self.actor = actor
        self.engine = actor.engine
        self.key = key
        self.name = name
        self.failures = failures
        self.dropped = False
        self.ended = False
        """Whether it has no more to give."""
        self.out: deque[Future[Any]] = deque()
        """Requests whose answers have not been taken in, in order."""
        self.num_held = 0
        """What the guest has taken in and not given on: lost if it dies."""
        self.moves = False
        """Whether it can be made anew on another actor with nothing lost, so that whichever is free can have it."""
        self.rereads = False
        """Whether what was asked for and did not come will come all the same, when it is asked for anew."""
        self.request: Message
        """A call of its method `pull`, encoded once."""
        self._opening: Future[Any]
        self._incarnation = 0  # the life of the actor in which the guest was made
        self.hook: Any = None
        """What `on_restart` returned, until something has come from the guest."""

    def begin(self) -> None:
        """Call `open`, for the first time or after a restart."""
        raise NotImplementedError

    def open(self, make: Callable[..., Any], *args: Any, parts: Mapping[str, Any] | None = None) -> None:
        """Have the actor make the guest as `make(home, *args)`. If that cannot be sent, say which of the parts.

        Its deadline is a long one: a guest that is brought back to where it was may have much to do again.
        """
        deadline = self.failures.deadline and _MAKING * self.failures.deadline
        try:
            message = self.engine.message(_open, (self.key, make, *args))
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

    def ask(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the guest. The answer is None if it is not there."""
        return self.engine.send(
            self.actor, self.engine.message((self.key, method), args), timeout=self.failures.deadline
        )

    def answer(self, future: Future[Any]) -> Any:
        """Return an answer that has come, or what is wrong with it: it failed, or what was to run before it did."""
        error = future.exception()
        if error is None and self.hook is not None:
            hooks, self.hook = self.hook, None
            for hook in hooks if isinstance(hooks, (list, tuple)) else [hooks]:
                error = error or (hook.exception() if isinstance(hook, Future) else None)
        if error is not None:
            return error
        found = future.result()
        if found is None:
            return self._opening.exception() or ActorDied("its actor was restarted by others", self.actor.name)
        return found

    def failed(self, error: BaseException, may_drop: bool = False) -> str:
        """Do what the policy says and return what was done, `restarted` (it must begin anew) or `dropped`; or raise."""
        failures = self.failures
        if isinstance(error, (ActorError, OperatorError) if failures.errors else ActorError):
            if failures.policy == "drop" and may_drop:
                self.dropped = self.ended = True
                return "dropped"
            if failures.policy == "restart":
                self._restart(error)
                try:
                    self.hook = failures.on_restart(self.actor) if failures.on_restart else None
                except Exception as failure:
                    raised = f"{type(failure).__name__}: {failure}"
                    raise ShardFailed(f"on_restart raised for {self.name}: {raised}") from failure
                return "restarted"
        if isinstance(error, OperatorError):
            raise error from error.original
        raise ShardFailed(f"{self.name} on {self.actor.name} failed: {type(error).__name__}: {error}") from error

    def _restart(self, error: BaseException) -> None:
        if self.actor.incarnation != self._incarnation and self.actor.alive:
            return  # it has come back for another of its guests
        try:
            self.engine.restart(self.actor, Restarts(budget=self.failures.budget, window=self.failures.window))
        except RestartsExhausted as exhausted:
            raise ShardFailed(f"{self.name} failed once too often: {exhausted}") from error

    def move(self, actor: Actor) -> None:
        """Go to another actor."""
        self.close()
        self.actor, self.engine = actor, actor.engine
        self.begin()

    @property
    def reachable(self) -> bool:
        """Whether its actor is there to be asked."""
        return self.actor.alive and not self.engine.closed

    def close(self) -> None:
        """End the guest."""
        if self.reachable:
            self.engine.send(self.actor, self.engine.message(_close, (self.key,)))


class ThreadGuest:
    """What a Guest is, for an object that is used on a thread of the driver's own and nowhere else."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._object: Any = None

    def open(self, make: Callable[..., Any], *args: Any) -> None:
        """Make the guest as `make(home, *args)`, and start its thread."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD_NAME)
        self._object = make(Home(None), *args)

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the guest on its thread; returns a future."""
        assert self._thread is not None
        return self._thread.submit(getattr(self._object, method), *args)

    def answer(self, future: Any) -> Any:
        """Return an answer that has come, or what is wrong with it."""
        return future.exception() or future.result()

    def failed(self, error: BaseException) -> str:
        """Raise the error: what runs in the driver cannot be restarted."""
        raise error

    def close(self) -> None:
        """End the thread, when it has done what it is doing."""
        if self._thread is not None:
            itself = threading.current_thread().name.startswith(_THREAD_NAME)  # it cannot wait for its own end
            self._thread.shutdown(wait=not itself, cancel_futures=True)


# What is sent to actors: functions of their home.


def _open(home: Home, key: str, make: Callable[..., Any], *args: Any) -> None:
    home.guests[key] = make(home, *args)


def _close(home: Home, key: str) -> None:
    guest = home.guests.pop(key, None)
    if guest is not None:
        guest.close()
