"""How a result is delivered: either the thread that waits asks Ray for it, or Ray notifies the engine.

A notification costs a fifth of a small call. So a thread that waits only for calls asks Ray for their results itself,
and Ray notifies only of calls that no thread has started to wait for within a few milliseconds.

Ray notifies on its own threads. These only put the result into an inbox, which is emptied in the reactor's loop: if
a thread of Ray waited for the engine's lock, and the thread that holds it waited for Ray, neither would ever wake.
"""

from __future__ import annotations

import math
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from raceway.engine._reactor import Reactor
from raceway.engine.base import Future
from raceway.engine.ray import ray

_FRESH_SECONDS = 0.005  # within which a thread may start to wait for a call that was just sent
_RETURN_SECONDS = 0.05  # within which a thread that asked for results may ask again
_QUICK_SECONDS = 0.0003  # a result that took less had arrived, or nearly

Deliver = Callable[[Any], None]
"""Takes the result of a Ray task; Ray's exception if it failed. Called with the lock."""
RayTask = tuple[Any, Deliver]
"""A task that Ray runs: its ObjectRef, and the function that takes its result."""


class Completions:
    """Delivers the results of Ray tasks, with the engine's lock held."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._lock = reactor.lock
        self._clock = reactor.clock
        self._tasks: dict[Future[Any], RayTask] = {}  # the calls that Ray runs
        self._unnotified: dict[Future[Any], RayTask] = {}  # those of which Ray will not notify the engine
        self._asked_for: list[Sequence[Future[Any]]] = []  # the futures for which threads are asking Ray now
        self._last_asked = -math.inf  # when a thread last asked
        self._results_are_quick = False  # the last request returned at once, so several results may be ready
        self._timer_is_set = False  # of `_notify_if_idle`
        self._postponed = False  # whether that was postponed, for a thread that may ask again
        self._inbox: deque[tuple[Deliver, Any]] = deque()
        self._bell_rung = False  # whether the reactor was woken since the inbox was last emptied
        self._bell_out, self._bell_in = socket.socketpair()
        self._bell_out.setblocking(False)
        reactor.watch(self._bell_out.fileno(), self.empty_inbox)

    # Tasks.

    def add_call(self, future: Future[Any], ref: Any, deliver: Deliver) -> None:
        """Deliver the result of a call in whichever way turns out to be cheaper."""
        self._tasks[future] = self._unnotified[future] = ref, deliver
        if not self._timer_is_set:
            asks_often = self._clock() - self._last_asked < _RETURN_SECONDS
            self._set_timer(_RETURN_SECONDS if asks_often else _FRESH_SECONDS)

    def add_notified_call(self, future: Future[Any], ref: Any, deliver: Deliver) -> None:
        """Deliver the result of a call as soon as Ray has it, whatever threads wait for."""
        self._tasks[future] = ref, deliver
        self.notify(ref, deliver)

    def forget(self, future: Future[Any]) -> None:
        """Drop a call whose result was delivered or is of no use any more."""
        self._tasks.pop(future, None)
        self._unnotified.pop(future, None)

    # Asking Ray.

    def ask(self, futures: Sequence[Future[Any]], count: int, seconds: float) -> bool:
        """Wait in Ray for `count` of the calls and deliver the results that are ready.

        Return False, without waiting, if one of the futures is not a call that Ray runs.
        """
        results: dict[Any, Any] = {}
        tasks = self._tasks
        with self._lock:
            try:
                delivers = dict([tasks[future] for future in futures])
            except KeyError:
                return False
            if not delivers:
                return False
            self._asked_for.append(futures)
        begin = time.perf_counter()
        try:
            results = wait_for_results(list(delivers), count, seconds, self._results_are_quick)
        finally:
            with self._lock:
                self._asked_for.remove(futures)
                self._last_asked = self._clock()
                self._results_are_quick = time.perf_counter() - begin < _QUICK_SECONDS
                for ref, result in results.items():
                    delivers[ref](result)
                if self._unnotified and not self._timer_is_set:
                    self._set_timer(_RETURN_SECONDS)
                if results:
                    self._reactor.notify()
        return True

    def deliver_if_ready(self, future: Future[Any]) -> None:
        """Deliver the result of a call if Ray has it."""
        task = self._tasks.get(future)
        if task is not None:
            ref, deliver = task
            for result in wait_for_results([ref], 1, 0.0).values():
                deliver(result)

    # Being notified by Ray.

    def notify(self, ref: Any, deliver: Deliver) -> None:
        """Have Ray notify the engine when a task is done."""
        ref.future().add_done_callback(lambda future: self.post(deliver, future.exception() or future.result()))

    def notify_unasked(self) -> None:
        """Have Ray notify the engine of all calls for which no thread is asking."""
        with self._lock:
            asked = {future for futures in self._asked_for for future in futures}
            for future in [future for future in self._unnotified if future not in asked]:
                self.notify(*self._unnotified.pop(future))

    def _set_timer(self, seconds: float) -> None:
        self._timer_is_set = True
        self._reactor.call_at(self._clock() + seconds, self._notify_if_idle)

    def _notify_if_idle(self) -> None:
        self._timer_is_set = False
        may_ask_again = not self._asked_for and self._clock() - self._last_asked < _RETURN_SECONDS
        self._postponed = may_ask_again and not self._postponed  # once, or it would be postponed for ever
        if self._postponed:
            self._set_timer(_RETURN_SECONDS)
        else:
            self.notify_unasked()

    # The inbox.

    @property
    def has_arrivals(self) -> bool:
        """Whether there are results in the inbox."""
        return bool(self._inbox)

    def post(self, deliver: Deliver, result: Any) -> None:
        """Have `deliver(result)` called in the reactor's loop. May be called on any thread; takes no lock."""
        self._inbox.append((deliver, result))
        if not self._bell_rung:
            self._bell_rung = True
            try:
                self._bell_in.send(b"\0")
            except OSError:
                pass  # the engine was closed meanwhile

    def empty_inbox(self, _events: int = 0) -> None:
        """Deliver the results in the inbox."""
        try:
            self._bell_out.recv(64)
        except BlockingIOError:
            pass
        self._bell_rung = False  # before the inbox is read: a thread that adds to it afterwards rings again
        inbox = self._inbox
        while inbox:
            deliver, result = inbox.popleft()
            deliver(result)

    def close(self) -> None:
        """Deliver nothing more. Called with the lock."""
        self._bell_rung = True  # so that no thread rings
        self._reactor.unwatch(self._bell_out.fileno())
        self._bell_in.close()
        self._bell_out.close()
        self._inbox.clear()


def wait_for_results(refs: list[Any], count: int, seconds: float, are_quick: bool = False) -> dict[Any, Any]:
    """Wait for `count` tasks and return the results of those that are done; Ray's exception for one that failed.

    `ray.wait` for one task returns only one, even if more are done. So when results are quick, look first for all that
    are ready.
    """
    if count >= len(refs):
        try:
            return dict(zip(refs, ray.get(refs, timeout=seconds), strict=True))
        except ray.exceptions.RayError:
            seconds = 0  # the time is up, or one of them has failed
    done = ray.wait(refs, num_returns=len(refs), timeout=0)[0] if are_quick and seconds else []
    if len(done) < count:
        done = ray.wait(refs, num_returns=count, timeout=seconds)[0]
    try:
        return dict(zip(done, ray.get(done), strict=True))
    except ray.exceptions.RayError:
        return {ref: _result_or_error(ref) for ref in done}


def _result_or_error(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return error
