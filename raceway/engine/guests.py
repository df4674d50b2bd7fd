"""Guests: objects that live beside an actor's own, and are made anew when the actor has to be restarted.

An engine's call can name a function instead of a method; it runs where the actor lives, with `home.object`, the
actor's own object, and `home.guests`, room for others. A `Guest` is the driver's end of one of those, and says what
happens when its actor dies or it raises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raceway.engine.base import Actor, Future, Home, Message, Restarts
from raceway.errors import ActorDied, ActorError, ConfigError, OperatorError, RestartsExhausted, ShardFailed, unknown

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
    on_restart: Callable[[Actor], Any] | None = None
    """Called with the actor before its guest is made anew. What it sends is handled first."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown("failure policy", self.policy, POLICIES)
        if isinstance(self.budget, bool) or not isinstance(self.budget, int) or self.budget < 1:
            raise ConfigError(f"the budget for failures must be a whole number from 1, not {self.budget!r}")
        for name in ("window", "deadline"):
            seconds = getattr(self, name)
            if seconds is not None and (not isinstance(seconds, (int, float)) or not seconds > 0):
                raise ConfigError(f"{name} must be a number of seconds, not {seconds!r}")


class Guest:
    """The driver's end of an object beside an actor's own. `name` is for errors."""

    def __init__(self, actor: Actor, key: str, name: str, failures: Failures) -> None:
        self.actor = actor
        self.engine = actor.engine
        self.key = key
        self.name = name
        self.failures = failures
        self.dropped = False
        self.request: Message
        """The request that `repeat` sends: encoded once."""
        self._opening: Future[Any]
        self._incarnation = 0  # the life of the actor in which the guest was made
        self._hook: Any = None  # what `on_restart` returned, until something has come from the guest

    def open(self, make: Callable[..., Any], args: tuple[Any, ...], method: str = "") -> None:
        """Have the actor make the guest as `make(home, *args)`; `method` is what `repeat` will call."""
        self._opening = self.engine.send(self.actor, self.engine.message(_open, (self.key, make, *args)))
        self.request = self.engine.message((self.key, method))
        self._incarnation = self.actor.incarnation

    def ask(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the guest. The answer is None if it is not there."""
        return self.engine.send(self.actor, self.engine.message((self.key, method), args))

    def repeat(self) -> Future[Any]:
        """Send the request that was encoded once."""
        return self.engine.send(self.actor, self.request, timeout=self.failures.deadline)

    def answer(self, future: Future[Any]) -> Any:
        """Return an answer that has come, or what is wrong with it: it failed, or what was to run before it did."""
        error = future.exception()
        if error is None and self._hook is not None:
            hook, self._hook = self._hook, None
            error = hook.exception() if isinstance(hook, Future) else None
        if error is not None:
            return error
        found = future.result()
        if found is None:
            return self._opening.exception() or ActorDied("its actor was restarted by others", self.actor.name)
        return found

    def failed(self, error: BaseException, may_drop: bool) -> str:
        """Do what the policy says, and return what was done: `restarted` (make it anew) or `dropped`; or raise."""
        failures = self.failures
        if isinstance(error, (ActorError, OperatorError)):
            if failures.policy == "drop" and may_drop:
                self.dropped = True
                return "dropped"
            if failures.policy == "restart":
                self._restart(error)
                self._hook = failures.on_restart(self.actor) if failures.on_restart else None
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

    @property
    def reachable(self) -> bool:
        """Whether its actor is there to be asked."""
        return self.actor.alive and not self.engine.closed

    def close(self) -> None:
        """End the guest."""
        if self.reachable:
            self.engine.send(self.actor, self.engine.message(_close, (self.key,)))


# What is sent to actors: functions of their home.


def _open(home: Home, key: str, make: Callable[..., Any], *args: Any) -> None:
    home.guests[key] = make(home, *args)


def _close(home: Home, key: str) -> None:
    guest = home.guests.pop(key, None)
    if guest is not None:
        guest.close()
