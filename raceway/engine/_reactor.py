"""One loop for everything that the driver waits for: sockets, timers, and what other threads hand in.

The thread that waits runs the loop itself, so a call and its return cost no change of thread. Other threads that wait
meanwhile are told when something changed. When nobody waits (the program computes), a thread in the background takes
over after a moment, so that results are taken in, the dead are noticed and nested calls are served all the same. It
sleeps in the kernel while it has the loop, and for good while somebody else has: an idle driver does nothing at all.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from raceway.errors import EngineClosed

T = TypeVar("T")

_log = logging.getLogger(__name__)

_GRACE_SECONDS = 5.0

TAKE_OVER_SECONDS = 0.01
"""How long the loop may lie idle before the background thread takes it. Shorter would steal it between two calls."""


class Reactor:
    """Runs callbacks for readable descriptors and for timers, always with `lock` held."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, background: bool = True) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self._changed = threading.Condition(self.lock)
        self._poller: Any = select.epoll() if hasattr(select, "epoll") else _Poll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ids = itertools.count()
        self._spin = Spin()
        self.crowded: Callable[[], bool] = lambda: False
        """Whether others could use the core on which somebody stays awake to look for answers."""
        self._looping = False  # somebody is in `_once`
        self._handling = False  # and it runs callbacks
        self._turns = 0  # how often the loop was entered: tells the background thread that it is used
        self._followers = 0
        self._background_leads = False
        self._closed = False
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self.watch(self._wake_out.fileno(), self._woken)
        self._parked = False
        self._unpark = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._background, name="raceway-reactor", daemon=True)
        if background:
            self._thread.start()

    # What to watch.

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` whenever `fd` is readable or hung up."""
        self._callbacks[fd] = callback
        self._poller.register(fd, select.POLLIN)

    def watch_writable(self, fd: int, on: bool) -> None:
        """Also call the callback of `fd` while it is writable."""
        self._poller.modify(fd, select.POLLIN | select.POLLOUT if on else select.POLLIN)
        if on:
            self.wake()

    def unwatch(self, fd: int) -> None:
        if self._callbacks.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback()` once, when the clock has reached `when`."""
        heapq.heappush(self._timers, (when, next(self._ids), callback))
        if self._timers[0][2] is callback:
            self.wake()

    def wake(self) -> None:
        """Make whoever sleeps in the loop look again (from any thread)."""
        if self._looping:
            try:
                self._wake_in.send(b"\0")
            except BlockingIOError:
                pass  # it is full, so somebody is about to wake

    def nudge(self) -> None:
        """Make whoever waits look again, from any thread, whatever locks it holds: this one takes none."""
        try:
            self._wake_in.send(b"\0")
        except OSError:
            pass  # it is full, so somebody is about to look; or closed

    def changed(self) -> None:
        """Tell all waiting threads that something they may wait for has happened (from any thread)."""
        if self._followers:
            self._changed.notify_all()
        if not self._background_leads:  # that waits for nothing of its own
            self.wake()

    # Waiting.

    def wait(self, ready: Callable[[], Any], timeout: float | None = None) -> bool:
        """Run the loop, or wait for whoever runs it, until `ready()`. Return whether it came true in time."""
        until = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            try:
                while not ready():
                    if self._closed:
                        raise EngineClosed("the engine was closed while this was waited for")
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    if self._looping:
                        self._follow(left)
                    else:
                        self._once(left)
                return True
            finally:
                self._wake_background()

    def _wake_background(self) -> None:
        if self._parked:
            self._parked = False
            self._unpark.release()

    def glance(self) -> None:
        """Handle what has come, without waiting: for a thread that hands in much work and is in no loop.

        It saves the background thread from taking over, and both from fighting for the interpreter.
        """
        with self.lock:
            # Not within a callback: that would mix up the order of what comes.
            if not (self._looping or self._handling or self._closed):
                self._once(0.0)
            self._wake_background()

    def _follow(self, timeout: float | None) -> None:
        self._followers += 1
        if self._background_leads:
            self.wake()  # it makes way: whoever waits had better run the loop itself
        try:
            self._changed.wait(timeout)
        finally:
            self._followers -= 1

    def _once(self, timeout: float | None) -> None:
        """Sleep until something happens, and handle it. Called with the lock, which it gives up while it sleeps."""
        if self._timers:
            soon = self._timers[0][0] - self.clock()
            timeout = soon if timeout is None else min(soon, timeout)
        timeout = -1 if timeout is None else max(0.0, timeout)
        wait = self._poller.poll if timeout == 0 or self.crowded() else partial(self._spin.wait, self._poller.poll)
        self._looping = True
        self._turns += 1
        self.lock.release()
        try:
            events = wait(timeout)
        finally:
            self.lock.acquire()
            self._looping = False
            if self._followers:
                self._changed.notify_all()
        self._handling = True
        try:
            for fd, mask in events:
                callback = self._callbacks.get(fd)
                if callback is not None:  # None: an earlier event of this round closed it
                    self._guarded(callback, mask)
            while self._timers and self._timers[0][0] <= self.clock():
                self._guarded(heapq.heappop(self._timers)[2])
        finally:
            self._handling = False

    @staticmethod
    def _guarded(callback: Callable[..., None], *args: int) -> None:
        try:
            callback(*args)
        except Exception:  # whoever happens to run the loop is not the one to blame, and others depend on it
            _log.exception("a callback of the engine failed; the engine goes on")

    def _woken(self, mask: int) -> None:
        try:
            self._wake_out.recv(4096)
        except BlockingIOError:
            pass

    def _background(self) -> None:
        """Run the loop while nobody else does.

        It looks every few milliseconds whether the loop is in use, but only as long as that is in doubt: it parks once
        another thread has stayed in the loop for a whole look, and that thread wakes it on leaving.
        """
        while not self._closed:
            with self.lock:
                seen = self._turns
            self._unpark.acquire(timeout=TAKE_OVER_SECONDS)
            with self.lock:
                if self._closed:
                    return
                if self._looping and self._turns == seen:
                    self._parked = True
                elif not self._looping and self._turns == seen:
                    self._background_leads = True
                    while not (self._followers or self._closed):
                        self._once(None)
                    self._background_leads = False
                    self._changed.notify_all()
            if self._parked:
                self._unpark.acquire()

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self._changed.notify_all()
            self._unpark.release()
            self.wake()
            until = time.monotonic() + _GRACE_SECONDS
            while self._looping and time.monotonic() < until:  # nobody may sleep on what is closed next
                self.wake()
                self._follow(0.05)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._poller.close()
        self._wake_in.close()
        self._wake_out.close()


class Spin:
    """Looks again for a few microseconds before it sleeps, as long as that pays.

    Waking a sleeping core costs more than a whole call and its return (5 or 50 µs). So while answers come quickly the
    one who waits stays awake for them. The first wait that lasts longer ends it, and only a quick one begins it
    again: who waits for something slow, or for nothing, burns no time.
    """

    _SECONDS = 300e-6  # so long that one who is awake sees the answer of one who had to be woken
    _QUICK_SECONDS = 600e-6
    _MOST_SKIPPED = 4096

    def __init__(self) -> None:
        self._pays = False
        self._skip = 0  # waits to go before it is tried again
        self._penalty = 1

    def wait(self, poll: Callable[[float], T], timeout: float) -> T:
        """Return `poll(timeout)`, having tried `poll(0)` for a moment before. Seconds; -1 is for ever."""
        if timeout == 0:
            return poll(0)
        now = time.perf_counter
        start = now()
        if self._pays:
            until = start + self._SECONDS
            while now() < until:
                found = poll(0)
                if found:
                    self._penalty = 1
                    return found
            # It may be that the other cannot run because this one does: so try less and less often.
            self._penalty = min(2 * self._penalty, self._MOST_SKIPPED)
            self._skip = self._penalty
        found = poll(timeout)
        self._skip -= 1
        self._pays = self._skip < 0 and now() - start < self._QUICK_SECONDS
        return found


class _Poll:
    """`select.poll` in the clothes of `select.epoll`, where there is no epoll."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register = self._poll.register
        self.modify = self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        return self._poll.poll(timeout * 1000 if timeout >= 0 else None)

    def close(self) -> None:
        pass
