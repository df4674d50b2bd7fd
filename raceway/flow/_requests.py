"""Request items from guests, and send items to them, with several calls outstanding."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from raceway.engine.base import Future, Payload
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
        synchronous: whether answers are used only when those of all guests have arrived.

    An actor works on one movable guest at a time, and guests move to idle actors. So slow actors, or those with
    longer items, do fewer of them.
    """

    def __init__(
        self,
        guests: Sequence[G],
        wakeups: Wakeups,
        on_failure: Callable[[str, G, BaseException, int], None],
        synchronous: bool = False,
    ) -> None:
        self.closed = False
        self.num_outstanding = 0
        """Requests whose answers have not been received."""
        self._guests = guests
        self._on_failure = on_failure
        self._wait_for_all = synchronous and not any(guest.movable for guest in guests)
        self._idle_actors = {guest.actor for guest in guests if guest.movable}
        self._unassigned: deque[G] = deque()  # movable guests whose request was not sent yet
        self._on_other_engine = any(guest.engine is not wakeups.engine for guest in guests)
        wakeups.callers.append(self)
        self.arrivals: deque[tuple[G, Future[Any], Payload | None]] = deque()
        """Answers that have arrived and were not received; None as payload means a failure."""
        self._callbacks = {guest: self._callback(guest, wakeups) for guest in guests}

    def __len__(self) -> int:
        return 0 if self.closed else self.num_outstanding

    def request(self, guest: G) -> None:
        """Request one item from a guest."""
        self.num_outstanding += 1
        if guest.movable:
            self._unassigned.append(guest)
            self._assign()
        else:
            self._send(guest)

    def _assign(self) -> None:
        """Give unassigned guests to idle actors: an actor's own guests first, then those of busy actors."""
        for actor in [actor for actor in self._idle_actors if self._unassigned]:
            own = next((guest for guest in self._unassigned if guest.actor is actor), None)
            others = (
                guest for guest in self._unassigned if guest.actor not in self._idle_actors and not guest.num_held
            )
            guest = own or next(others, None)
            if guest is not None:
                self._unassigned.remove(guest)
                self._idle_actors.discard(actor)
                if guest is not own:
                    guest.move(actor)
                self._send(guest)

    def _send(self, guest: G) -> None:
        deadline, on_done = guest.failures.deadline, self._callbacks[guest]
        guest.outstanding.append(guest.engine.send(guest.actor, guest.request, timeout=deadline, on_done=on_done))

    def awaited(self) -> tuple[list[Future[Any]], int] | None:
        """Return the outstanding requests, and how many must finish before there is anything to receive."""
        futures = [future for guest in self._guests for future in guest.outstanding if not future.done()]
        return None if futures and self._on_other_engine else (futures, len(futures) if self._wait_for_all else 1)

    def _callback(self, guest: G, wakeups: Wakeups) -> Callable[[Future[Any]], None]:
        arrivals, on_waiting_engine = self.arrivals, guest.engine is wakeups.engine

        def arrived(future: Future[Any]) -> None:
            payload = future.payload()
            arrivals.append((guest, future, payload))
            if self._wait_for_all and payload is not None and len(arrivals) < min(self.num_outstanding, _WAKE_AFTER):
                return  # waking the driver now would only take time from the shards that still work
            if on_waiting_engine:
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
            if guest.movable:
                self._idle_actors.add(guest.actor)
                self._assign()
            yield guest, answer, size

    def _handle_failure(self, guest: G, error: BaseException) -> None:
        num_requested, num_lost = len(guest.outstanding), len(guest.outstanding) + guest.num_held
        guest.outstanding.clear()
        self.num_outstanding -= num_requested
        guest.num_held = 0
        self._idle_actors |= {guest.actor} if guest.movable else set()
        num_dropped = sum(other.dropped for other in self._guests)
        may_drop = num_dropped < min(guest.failures.budget, len(self._guests) - 1)
        try:
            outcome = guest.handle_failure(error, may_drop)
        except Exception:
            self._on_failure("failed", guest, error, num_lost)
            raise
        if outcome == "dropped" and not guest.actor.alive and any(other.actor.alive for other in self._guests):
            self._idle_actors.discard(guest.actor)  # guests that wait for it move to other actors
            self._assign()
        if outcome == "restarted":
            num_lost -= num_requested if guest.regenerates_lost_items else 0
            guest.start()
            for _ in range(num_requested):
                self.request(guest)
        self._on_failure(outcome, guest, error, num_lost)


class PendingRequests(deque[tuple[ItemRequester[Any], Guest]]):
    """Guests, of all gathers of a run, whose last item was consumed. `send` requests the next item from each."""

    def send(self) -> None:
        """Send the requests."""
        while self:
            requester, guest = self.popleft()
            if not (guest.ended or requester.closed):
                requester.request(guest)
