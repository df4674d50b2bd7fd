"""Asking guests for what they have, and sending them what they are to work on, many at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from raceway.engine._codec import Payload
from raceway.engine.base import Future
from raceway.flow._guests import Guest, ThreadGuest
from raceway.flow._wakeups import News

_HANDFUL = 4  # answers that are left lying until all have come


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
        synchronous: there is nothing to do with an answer before the others have come.

    Guests that move are asked one at a time on each actor, and go to one that has nothing left to do. So actors that
    are slow, or have the longer work, do less of it.
    """

    def __init__(
        self,
        guests: Sequence[G],
        news: News,
        happened: Callable[[str, G, BaseException, int], None],
        synchronous: bool = False,
    ) -> None:
        self.closed = False
        """Whether nobody is to be asked any more."""
        self.num_out = 0
        """Requests whose answers have not been taken in."""
        self._guests = guests
        self._happened = happened
        self._all = synchronous and not any(guest.moves for guest in guests)
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
        deadline, told = guest.failures.deadline, self._callbacks[guest]
        guest.out.append(guest.engine.send(guest.actor, guest.request, timeout=deadline, told=told))

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the requests that are not done, and how many must be before there is anything to do."""
        futures = [future for guest in self._guests for future in guest.out if not future.done()]
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
        arrivals = self.arrivals
        while arrivals:
            guest, future, payload = arrivals.popleft()
            out, answer, size = guest.out, None, 0
            if not out or out[0] is not future:
                continue  # of a life that was given up
            if payload is not None:
                size = payload.size if payload.buffers else len(payload.body)
                if guest.hook is None:  # the shortest way, which is the usual one
                    try:
                        answer = guest.engine.decode(payload)
                    except Exception:
                        pass  # the future will say
            if answer is None:
                answer = guest.answer(future)
                if isinstance(answer, BaseException):
                    self._failed(guest, answer)
                    continue
            out.popleft()
            self.num_out -= 1
            if guest.moves:
                self._free.add(guest.actor)
                self._deal()
            yield guest, answer, size

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


class Again(deque[tuple[Pulls[Any], Guest]]):
    """Guests whose answers have been dealt with, of however many Pulls: to be asked again."""

    def ask(self) -> None:
        """Ask them."""
        while self:
            pulls, guest = self.popleft()
            if not (guest.ended or pulls.closed):
                pulls.ask(guest)
