"""The event loop of the driver: sockets, timers, and work from other threads.

The thread that waits runs the loop itself, so a call and its return need no thread switch. Other threads that wait
meanwhile are notified of changes. When no thread waits (the program computes), a background thread takes over after a
moment, so that results are received, deaths are noticed and nested calls are served all the same. It sleeps in the
kernel while it runs the loop, and is parked while another thread does: an idle driver uses no CPU time at all.
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

_CLOSE_SECONDS = 5.0  # that `close` waits for other threads to leave the loop
_TAKE_OVER_SECONDS = 0.01  # idle time before the background thread takes over; less would steal the loop between calls


class Reactor:
    """Runs callbacks for readable descriptors and for timers, always with `lock` held.

    Args:
        clock: the source of time for timers.
        background: whether to run the loop in a background thread while no other thread does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, background: bool = True) -> None:
        self.lock = threading.RLock()
        self.clock = clock
        self._changed = threading.Condition(self.lock)
        self._poller: Any = select.epoll() if hasattr(select, "epoll") else _Poll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._timer_ids = itertools.count()
        self._spin_wait = SpinWait()
        self.cores_busy: Callable[[], bool] = lambda: False
        """Whether other processes could use the core on which a thread spins while it waits."""
        self._looping = False  # a thread is in `_run_once`
        self._handling = False  # and is running callbacks
        self._num_turns = 0  # how often the loop was entered: shows the background thread that it is in use
        self._num_followers = 0  # threads that wait for the thread in the loop
        self._background_leads = False
        self._closed = False
        self._wake_out, self._wake_in = socket.socketpair()
        for end in (self._wake_out, self._wake_in):
            end.setblocking(False)
        self.watch(self._wake_out.fileno(), self._drain_wake)
        self._parked = False
        self._unpark = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run_background, name="raceway-reactor", daemon=True)
        if background:
            self._thread.start()

    # Watching.

    def watch(self, fd: int, callback: Callable[[int], None]) -> None:
        """Call `callback(events)` whenever `fd` is readable or its other end is closed."""
        self._callbacks[fd] = callback
        self._poller.register(fd, select.POLLIN)

    def watch_writable(self, fd: int, on: bool) -> None:
        """Start (`on`) or stop calling the callback of `fd` while it is writable, too."""
        self._poller.modify(fd, select.POLLIN | select.POLLOUT if on else select.POLLIN)
        if on:
            self.wake()

    def unwatch(self, fd: int) -> None:
        """Stop watching a descriptor."""
        if self._callbacks.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def call_at(self, when: float, callback: Callable[[], None]) -> None:
        """Call `callback()` once, when the clock reaches `when`."""
        heapq.heappush(self._timers, (when, next(self._timer_ids), callback))
        if self._timers[0][2] is callback:
            self.wake()

    def wake(self) -> None:
        """Wake the thread that sleeps in the loop, if any. May be called from any thread."""
        if self._looping:
            try:
                self._wake_in.send(b"\0")
            except BlockingIOError:
                pass  # the buffer is full, so the thread is about to wake

    def ensure_wake(self) -> None:
        """End the current sleep in the loop, or the next one. May be called from any thread; takes no lock."""
        try:
            self._wake_in.send(b"\0")
        except OSError:
            pass  # the buffer is full, so a thread is about to wake; or the reactor is closed

    def notify(self) -> None:
        """Notify all waiting threads that something they may wait for has happened. May be called from any thread."""
        if self._num_followers:
            self._changed.notify_all()
        if not self._background_leads:  # the background thread waits for no condition
            self.wake()

    # Waiting.

    def wait(self, ready: Callable[[], Any], timeout: float | None = None) -> bool:
        """Run the loop, or wait for the thread that runs it, until `ready()`. Return False on a timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.lock:
            try:
                while not ready():
                    if self._closed:
                        raise EngineClosed("the engine was closed while a thread waited for it")
                    remaining = None if deadline is None else deadline - time.monotonic()
                    if remaining is not None and remaining <= 0:
                        return False
                    if self._looping:
                        self._follow(remaining)
                    else:
                        self._run_once(remaining)
                return True
            finally:
                self._unpark_background()

    def _unpark_background(self) -> None:
        if self._parked:
            self._parked = False
            self._unpark.release()

    def poll(self) -> None:
        """Handle pending events without waiting, for a thread that sends many calls without waiting for any.

        It saves the background thread from taking over, and the two from competing for the interpreter.
        """
        with self.lock:
            # Not within a callback: events would be handled out of order.
            if not (self._looping or self._handling or self._closed):
                self._run_once(0.0)
            self._unpark_background()

    def _follow(self, timeout: float | None) -> None:
        """Wait for the thread that is in the loop to notify this one."""
        self._num_followers += 1
        if self._background_leads:
            self.wake()  # it gives up the loop, so that the thread that waits runs it itself
        try:
            self._changed.wait(timeout)
        finally:
            self._num_followers -= 1

    def _run_once(self, timeout: float | None) -> None:
        """Sleep until something happens, and handle it. Called with the lock, which is released while it sleeps."""
        if self._timers:
            next_timer = self._timers[0][0] - self.clock()
            timeout = next_timer if timeout is None else min(next_timer, timeout)
        timeout = -1 if timeout is None else max(0.0, timeout)
        poll = self._poller.poll
        wait = poll if timeout == 0 or self.cores_busy() else partial(self._spin_wait.wait, poll)
        self._looping = True
        self._num_turns += 1
        self.lock.release()
        try:
            events = wait(timeout)
        finally:
            self.lock.acquire()
            self._looping = False
            if self._num_followers:
                self._changed.notify_all()
        self._handling = True
        try:
            for fd, mask in events:
                callback = self._callbacks.get(fd)
                if callback is not None:  # None: the callback of an earlier event has closed it
                    self._run_callback(callback, mask)
            while self._timers and self._timers[0][0] <= self.clock():
                self._run_callback(heapq.heappop(self._timers)[2])
        finally:
            self._handling = False

    @staticmethod
    def _run_callback(callback: Callable[..., None], *args: int) -> None:
        try:
            callback(*args)
        except Exception:  # not the fault of the thread that happens to run the loop, and others depend on the loop
            _log.exception("a callback of the engine failed; the engine continues")

    def _drain_wake(self, mask: int) -> None:
        try:
            self._wake_out.recv(4096)
        except BlockingIOError:
            pass

    def _run_background(self) -> None:
        """Run the loop while no other thread does.

        It checks every few milliseconds whether the loop is in use, until another thread has stayed in the loop from
        one check to the next. Then it parks, and that thread unparks it when it leaves.
        """
        while not self._closed:
            with self.lock:
                num_turns = self._num_turns
            self._unpark.acquire(timeout=_TAKE_OVER_SECONDS)
            with self.lock:
                if self._closed:
                    return
                if self._looping and self._num_turns == num_turns:
                    self._parked = True
                elif not self._looping and self._num_turns == num_turns:
                    self._background_leads = True
                    while not (self._num_followers or self._closed):
                        self._run_once(None)
                    self._background_leads = False
                    self._changed.notify_all()
            if self._parked:
                self._unpark.acquire()

    def close(self) -> None:
        """Stop the loop: threads that still wait raise EngineClosed."""
        with self.lock:
            self._closed = True
            self._changed.notify_all()
            self._unpark.release()
            self.wake()
            deadline = time.monotonic() + _CLOSE_SECONDS
            while self._looping and time.monotonic() < deadline:  # or a thread would poll closed descriptors
                self.wake()
                self._follow(0.05)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self._poller.close()
        self._wake_in.close()
        self._wake_out.close()


class SpinWait:
    """Polls for a few microseconds before it sleeps, as long as that pays off.

    Waking a sleeping core costs more than a whole call and its return (50 µs instead of 5). So while answers come
    quickly, the thread that waits stays awake for them. The first wait that lasts longer ends this, and only a quick
    one starts it again: a thread that waits for something slow, or for nothing, burns no CPU time.
    """

    _SPIN_SECONDS = 300e-6  # long enough for the answer of a process that has to be woken first
    _QUICK_SECONDS = 600e-6
    _MAX_SKIPPED = 4096

    def __init__(self) -> None:
        self._enabled = False
        self._num_to_skip = 0  # waits until spinning is tried again
        self._penalty = 1

    def wait(self, poll: Callable[[float], T], timeout: float) -> T:
        """Return `poll(timeout)`, after trying `poll(0)` for a moment. The timeout is in seconds; -1 means forever."""
        if timeout == 0:
            return poll(0)
        now = time.perf_counter
        start = now()
        if self._enabled:
            deadline = start + self._SPIN_SECONDS
            while now() < deadline:
                result = poll(0)
                if result:
                    self._penalty = 1
                    return result
            # The other process may be unable to run because this one spins: so try less and less often.
            self._penalty = min(2 * self._penalty, self._MAX_SKIPPED)
            self._num_to_skip = self._penalty
        result = poll(timeout)
        self._num_to_skip -= 1
        self._enabled = self._num_to_skip < 0 and now() - start < self._QUICK_SECONDS
        return result


class _Poll:
    """`select.poll` with the interface of `select.epoll`, for systems without epoll."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register = self._poll.register
        self.modify = self._poll.modify
        self.unregister = self._poll.unregister

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Return (descriptor, events) of those that are ready. The timeout is in seconds; -1 means forever."""
        return self._poll.poll(timeout * 1000 if timeout >= 0 else None)

    def close(self) -> None:
        """Do nothing: there is no descriptor to close."""
