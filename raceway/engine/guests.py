"""Guests: objects that live beside an actor's own, and are made anew when the actor has to be restarted.

An engine's call can name a function instead of a method; it runs where the actor lives, with `home.object`, the
actor's own object, and `home.guests`, room for others. A `Guest` is the driver's end of one of those, and says what
happens when its actor dies or it raises.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from raceway.engine._codec import Payload
from raceway.engine.base import Actor, Future, Home, Message, Restarts
from raceway.engine.news import News
from raceway.errors import (
    ActorDied,
    ActorError,
    FlowError,
    OperatorError,
    RestartsExhausted,
    SerializationError,
    ShardFailed,
    positive,
    unknown,
    whole,
)

_THREAD_NAME = "raceway-guest"
_HANDFUL = 4  # answers that are left lying until all have come
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
            raise unknown("failure policy", self.policy, POLICIES)
        whole("the budget for failures", self.budget)
        positive("window (in seconds)", self.window)
        if self.deadline is not None:
            positive("deadline (in seconds)", self.deadline)


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
        """Have the actor make the guest as `make(home, *args)`. If that cannot be sent, say which of the parts."""
        try:
            self._opening = self.engine.send(self.actor, self.engine.message(_open, (self.key, make, *args)))
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
        return self.engine.send(self.actor, self.engine.message((self.key, method), args))

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


class Pushes:
    """Sends values to a guest, at most so many at a time, and takes in what its `through` makes of them, in order."""

    def __init__(self, guest: Guest | ThreadGuest, news: News) -> None:
        self._guest = guest
        self._wake = news.wake
        self._elsewhere = not isinstance(guest, Guest) or guest.engine is not news.engine
        self._out: deque[tuple[Any, Any]] = deque()
        news.callers.append(self)

    def __len__(self) -> int:
        return len(self._out)

    def clear(self) -> None:
        """Forget what is under way."""
        self._out.clear()

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the calls that are not done, one of which must be before there is anything to do."""
        futures = [future for future, _ in self._out if not future.done()]
        return None if futures and self._elsewhere else (futures, 1)

    def send(self, value: Any, ticket: Any) -> None:
        """Send a value; the ticket comes back with what becomes of it."""
        future = self._guest.ask("through", value)
        self._out.append((future, ticket))
        future.add_done_callback(self._wake)

    def take_in(self) -> Iterator[tuple[Any, Any]]:
        """Yield what has come back, each with its ticket."""
        while self._out and self._out[0][0].done():
            future, ticket = self._out.popleft()
            answer = self._guest.answer(future)
            if isinstance(answer, BaseException):
                self._guest.failed(answer)
            yield answer, ticket


G = TypeVar("G", bound=Guest)


class Pulls(Generic[G]):
    """Asks guests for what their `pull` returns, and takes in the answers; guests that fail are dealt with.

    Args:
        guests: all that may be asked.
        news: gets an entry when there is something to take in.
        happened: told what was done about a guest (`restarted`, `dropped`, `failed`), the error, and how much is lost.
        in_step: there is nothing to do with an answer before the others have come.

    Guests that move are asked one at a time on each actor, and go to one that has nothing left to do. So actors that
    are slow, or have the longer work, do less of it.
    """

    def __init__(
        self,
        guests: Sequence[G],
        news: News,
        happened: Callable[[str, G, BaseException, int], None],
        in_step: bool = False,
    ) -> None:
        self.closed = False
        """Whether nobody is to be asked any more."""
        self.num_out = 0
        """Requests whose answers have not been taken in."""
        self._guests = guests
        self._happened = happened
        self._all = in_step and not any(guest.moves for guest in guests)
        self._free = {guest.actor for guest in guests if guest.moves}
        self._waiting: deque[G] = deque()  # guests that move and were not asked yet
        self._elsewhere = any(guest.engine is not news.engine for guest in guests)
        news.callers.append(self)
        self.arrivals: deque[tuple[G, Future[Any], Payload | None]] = deque()
        """What has come and was not taken in; no payload means a failure."""
        self._callbacks = {guest: self._callback(guest, news) for guest in guests}

    def __len__(self) -> int:
        return 0 if self.closed else self.num_out

    def ask(self, guest: G) -> None:
        """Ask a guest once."""
        self.num_out += 1
        if guest.moves:
            self._waiting.append(guest)
            self._deal()
        else:
            self._send(guest)

    def _deal(self) -> None:
        """Have actors that are free do what waits: their own guests first, then those of others."""
        for actor in [actor for actor in self._free if self._waiting]:
            own = next((guest for guest in self._waiting if guest.actor is actor), None)
            others = (guest for guest in self._waiting if guest.actor not in self._free and not guest.num_held)
            guest = own or next(others, None)
            if guest is not None:
                self._waiting.remove(guest)
                self._free.discard(actor)
                if guest is not own:
                    guest.move(actor)
                self._send(guest)

    def _send(self, guest: G) -> None:
        future = guest.engine.send(guest.actor, guest.request, timeout=guest.failures.deadline)
        guest.out.append(future)
        future.add_done_callback(self._callbacks[guest])

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the first request to each guest, and how many must be done before there is anything to do."""
        futures = [guest.out[0] for guest in self._guests if guest.out and not guest.out[0].done()]
        return None if futures and self._elsewhere else (futures, len(futures) if self._all else 1)

    def _callback(self, guest: G, news: News) -> Callable[[Future[Any]], None]:
        arrivals, noticed = self.arrivals, guest.engine is news.engine

        def arrived(future: Future[Any]) -> None:
            payload = future.payload()
            arrivals.append((guest, future, payload))
            if self._all and payload is not None and len(arrivals) < min(self.num_out, _HANDFUL):
                return  # there is nothing to do yet, and to look at one while others work would hold these up
            if noticed:
                news.append(guest)
            else:
                news.wake()

        return arrived

    def take_in(self) -> Iterator[tuple[G, Any, int]]:
        """Yield what has come, each with the guest it came from and its size in bytes."""
        while self.arrivals:
            guest, future, payload = self.arrivals.popleft()
            if not guest.out or guest.out[0] is not future:
                continue  # of a life that was given up
            try:  # the shortest way, which is the usual one
                answer = guest.engine.decode(payload) if payload is not None and guest.hook is None else None
            except Exception:
                answer = None
            answer = guest.answer(future) if answer is None else answer
            if isinstance(answer, BaseException):
                self._failed(guest, answer)
            else:
                guest.out.popleft()
                self.num_out -= 1
                if guest.moves:
                    self._free.add(guest.actor)
                    self._deal()
                yield guest, answer, payload.size if payload is not None else 0

    def _failed(self, guest: G, error: BaseException) -> None:
        num_asked, lost = len(guest.out), len(guest.out) + guest.num_held
        guest.out.clear()
        self.num_out -= num_asked
        guest.num_held = 0
        self._free |= {guest.actor} if guest.moves else set()
        num_dropped = sum(other.dropped for other in self._guests)
        try:
            done = guest.failed(error, may_drop=num_dropped < min(guest.failures.budget, len(self._guests) - 1))
        except Exception:
            self._happened("failed", guest, error, lost)
            raise
        if done == "dropped" and not guest.actor.alive and any(other.actor.alive for other in self._guests):
            self._free.discard(guest.actor)  # what waits for it goes to others
            self._deal()
        if done == "restarted":
            lost -= num_asked if guest.rereads else 0
            guest.begin()
            for _ in range(num_asked):
                self.ask(guest)
        self._happened(done, guest, error, lost)


# What is sent to actors: functions of their home.


def _open(home: Home, key: str, make: Callable[..., Any], *args: Any) -> None:
    home.guests[key] = make(home, *args)


def _close(home: Home, key: str) -> None:
    guest = home.guests.pop(key, None)
    if guest is not None:
        guest.close()


class Again(deque[tuple[Pulls[Any], Guest]]):
    """Guests whose answers have been dealt with, of however many Pulls: to be asked again."""

    def ask(self) -> None:
        """Ask them."""
        while self:
            pulls, guest = self.popleft()
            if not (guest.ended or pulls.closed):
                pulls.ask(guest)
