"""Request items from guests, and send items to them, with several calls outstanding."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from raceway.engine.base import Actor, Future, Payload
from raceway.errors import ActorError
from raceway.flow._hosted_objects import Guest, ThreadGuest
from raceway.flow._wakeups import Wakeups

_WAKE_AFTER = 4  # answers that a synchronous gather lets accumulate before it wakes to decode them


class ItemSender:
    """Sends items to a guest's `apply_and_report`, and receives the results in order."""

    def __init__(self, guest: Guest | ThreadGuest, wakeups: Wakeups) -> None:
        self._guest = guest
        self._wake = wakeups.wake
        self._on_other_engine = not isinstance(guest, Guest) or guest.engine is not wakeups.engine
        self._outstanding: deque[tuple[Any, Any]] = deque()
        wakeups.callers.append(self)

    def __len__(self) -> int:
        return len(self._outstanding)

    def clear(self) -> None:
        """Forget the outstanding calls."""
        self._outstanding.clear()

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the outstanding calls, of which one must finish before there is anything to receive."""
        futures = [future for future, _ in self._outstanding if not future.done()]
        return None if futures and self._on_other_engine else (futures, 1)

    def send(self, item: Any, tag: Any) -> None:
        """Send an item. `receive` returns the tag with its result."""
        future = self._guest.call("apply_and_report", item)
        self._outstanding.append((future, tag))
        future.add_done_callback(self._wake)

    def receive(self) -> Iterator[tuple[Any, Any]]:
        """Yield the results that have arrived, each with its tag."""
        while self._outstanding and self._outstanding[0][0].done():
            future, tag = self._outstanding.popleft()
            answer = self._guest.result_or_error(future)
            if isinstance(answer, BaseException):
                self._guest.handle_failure(answer)
            yield answer, tag


G = TypeVar("G", bound=Guest)


class ItemRequester(Generic[G]):
    """Requests items by calling the `pull` of guests, receives the answers, and handles failures.

    Args:
        guests: all guests that requests may go to.
        wakeups: gets an entry when there is something to receive.
        on_failure: called with the outcome (`restarted`, `dropped` or `failed`), the guest, the error and the number
            of items lost.
        num_async: how many requests of movable guests an actor gets at a time.
        synchronous: whether answers are used only when those of all guests have arrived.

    Movable guests share their actors: an actor gets the next request when it has answered one, of its own guests first
    and then of those of busy actors, which move to it. So slow actors, or those with longer items, do fewer of them.
    """

    def __init__(
        self,
        guests: Sequence[G],
        wakeups: Wakeups,
        on_failure: Callable[[str, G, BaseException, int], None],
        num_async: int = 1,
        synchronous: bool = False,
    ) -> None:
        self.closed = False
        self.num_outstanding = 0
        """Requests whose answers have not been received, sent or not."""
        self._num_waiting = 0  # those that a feeder has not sent
        self._guests = guests
        self._on_failure = on_failure
        self._wait_for_all = synchronous and not any(guest.hosts or guest.feeder for guest in guests)
        self._unsent: deque[G] = deque()  # movable guests whose request waits for an actor
        self._free_slots = Counter({actor: num_async for guest in guests for actor in guest.hosts})  # no zeros
        actors = [actor for guest in guests for actor in (guest.actor, *guest.hosts)]
        self._on_other_engine = any(actor.engine is not wakeups.engine for actor in actors)
        wakeups.callers.append(self)
        self.arrivals: deque[tuple[G, Future[Any], Payload | None]] = deque()
        """Answers that have arrived and were not received; None as payload means a failure."""
        self._callbacks = {guest: self._callback(guest, wakeups) for guest in guests}

    def __len__(self) -> int:
        return 0 if self.closed else self.num_outstanding - self._num_waiting

    def request(self, guest: G) -> None:
        """Request one item from a guest."""
        self.num_outstanding += 1
        if guest.feeder is not None:
            self._num_waiting += 1
            guest.feeder.request(self, guest)
            return
        if not guest.hosts:
            self._send(guest)
            return
        if not guest.actor.alive:
            self._leave(guest.actor)
        self._unsent.append(guest)
        self._assign()

    def send_waiting(self, guest: G) -> None:
        """Send a request that a feeder has kept until the guest was fed."""
        self._num_waiting -= 1
        self._send(guest)

    def _assign(self) -> None:
        """Send the requests that wait for an actor, as far as actors have free slots."""
        for actor in [*self._free_slots]:
            while self._unsent and actor in self._free_slots and (guest := self._next_for(actor)) is not None:
                self._unsent.remove(guest)
                if guest.actor is not actor:
                    guest.move(actor)
                self._take_slots(actor, 1)
                self._send(guest)

    def _next_for(self, actor: Actor) -> G | None:
        """Return the guest whose request an actor should get: one of its own, else one whose own actor is busy."""
        for guest in self._unsent:
            if guest.actor is actor:
                return guest
        for guest in self._unsent if actor.alive else ():
            if guest.can_move and guest.actor not in self._free_slots and actor in guest.hosts:
                return guest
        return None

    def _take_slots(self, actor: Actor, count: int) -> None:
        self._free_slots[actor] -= count
        if not self._free_slots[actor]:
            del self._free_slots[actor]

    def _leave(self, dead: Actor) -> None:
        """Move guests away from an actor that nobody restarts. Those that would lose items fail with it."""
        for guest in [guest for guest in self._guests if guest.actor is dead and not guest.ended]:
            alive = [actor for actor in guest.hosts if actor.alive]
            if alive and guest.can_move and guest.failures.policy == "drop":
                load = Counter(other.actor for other in self._guests if not other.ended)
                guest.move(min(alive, key=load.__getitem__))

    def _withdraw(self, guest: G) -> int:
        """Withdraw the requests for a guest that have not been sent. Return their number."""
        count = self._unsent.count(guest)
        for _ in range(count):
            self._unsent.remove(guest)
        if guest.feeder is not None:
            count = guest.feeder.withdraw(guest)
            self._num_waiting -= count
        self.num_outstanding -= count
        return count

    def _send(self, guest: G) -> None:
        deadline, on_done = guest.failures.deadline, self._callbacks[guest]
        guest.outstanding.append(guest.engine.send(guest.actor, guest.request, timeout=deadline, on_done=on_done))

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the outstanding requests, and how many must finish before there is anything to receive."""
        futures = [future for guest in self._guests for future in guest.outstanding if not future.done()]
        return None if futures and self._on_other_engine else (futures, len(futures) if self._wait_for_all else 1)

    def _callback(self, guest: G, wakeups: Wakeups) -> Callable[[Future[Any]], None]:
        arrivals, waiting_engine = self.arrivals, wakeups.engine

        def arrived(future: Future[Any]) -> None:
            payload = future.payload()
            arrivals.append((guest, future, payload))
            if self._wait_for_all and payload is not None and len(arrivals) < min(self.num_outstanding, _WAKE_AFTER):
                return  # waking the driver now would only take time from the shards that still work
            if guest.engine is waiting_engine:
                wakeups.append(guest)
            else:
                wakeups.wake()

        return arrived

    def receive(self) -> Iterator[tuple[G, Any, int]]:
        """Yield the answers that have arrived, each with its guest and its size in bytes."""
        arrivals = self.arrivals
        while arrivals:
            guest, future, payload = arrivals.popleft()
            outstanding, answer, size = guest.outstanding, None, 0
            if not outstanding or outstanding[0] is not future:
                continue  # requested before a restart
            if payload is not None:
                size = payload.size if payload.buffers else len(payload.body)
                if guest.restart_results is None:  # the common case, decoded without a detour through the future
                    try:
                        answer = guest.engine.decode(payload)
                    except Exception:
                        pass  # `result_or_error` returns the error
            if answer is None:
                answer = guest.result_or_error(future)
                if isinstance(answer, BaseException):
                    self._handle_failure(guest, answer)
                    continue
            outstanding.popleft()
            self.num_outstanding -= 1
            yield guest, answer, size
            if guest.hosts:  # after the caller has stored its position, with which it may move now
                self._free_slots[guest.actor] += 1
                if guest.ended:
                    self._withdraw(guest)
                self._assign()

    def call_all(self, method: str) -> list[Any]:
        """Return the results of a method of every guest; None for those that were dropped, or ended on a dead actor.

        No requests may be outstanding. A guest that fails is handled as one that fails on a request, and called again.
        """
        gone = [guest.dropped or (guest.ended and not guest.reachable) for guest in self._guests]
        futures = [None if gone[index] else guest.call(method) for index, guest in enumerate(self._guests)]
        return [self._result(method, *call) for call in zip(self._guests, futures, strict=True)]

    def _result(self, method: str, guest: G, future: Future[Any] | None) -> Any:
        while future is not None:
            answer = guest.result_or_error(future)
            if not isinstance(answer, BaseException):
                return answer
            if not isinstance(answer, ActorError):
                raise answer
            if not guest.ended and future.actor is guest.actor:  # else it left the dead actor with another guest
                self._handle_failure(guest, answer)
            future = None if guest.ended else guest.call(method)
        return None

    def _handle_failure(self, guest: G, error: BaseException) -> None:
        num_sent, num_lost = len(guest.outstanding), len(guest.outstanding) + guest.num_held
        guest.outstanding.clear()
        self.num_outstanding -= num_sent
        if guest.hosts and num_sent:
            self._free_slots[guest.actor] += num_sent
        num_requested = num_sent + self._withdraw(guest)
        guest.num_held = 0
        num_dropped = sum(other.dropped for other in self._guests)
        may_drop = num_dropped < min(guest.failures.budget, len(self._guests) - 1)
        try:
            outcome = guest.handle_failure(error, may_drop)
        except Exception:
            self._on_failure("failed", guest, error, num_lost)
            raise
        if guest.regenerates_lost_items and (outcome == "restarted" or guest.feeder is not None):
            num_lost -= num_sent
        if outcome == "restarted":
            guest.start()
            for _ in range(num_requested):
                self.request(guest)
        elif not guest.actor.alive:
            self._leave(guest.actor)
        self._assign()
        self._on_failure(outcome, guest, error, num_lost)


class PendingRequests(deque[tuple[ItemRequester[Any], Guest]]):
    """Guests, of all gathers of a run, whose last item was consumed. `send` requests the next item from each."""

    def send(self) -> None:
        """Send the requests."""
        while self:
            requester, guest = self.popleft()
            if not (guest.ended or requester.closed):
                requester.request(guest)
