"""The driver's end of the socket to a worker: it never blocks, whatever the worker does."""

from __future__ import annotations

import itertools
import logging
import select
import socket
from collections import deque
from collections.abc import Callable

from raceway.engine._codec import Payload
from raceway.engine._reactor import Reactor
from raceway.engine.process import frames

_log = logging.getLogger(__name__)

SOCKET_BYTES = 1 << 20
Frame = tuple[int, int, int, Payload]


class Corked:
    """While it is on, frames are gathered: what a batch of results gives rise to goes out as one batch too."""

    def __init__(self) -> None:
        self.on = False
        self.links: set[Link] = set()

    def release(self) -> None:
        """Send what was gathered."""
        self.on = False
        links, self.links = self.links, set()
        for link in links:
            link.send_more()


class Link:
    """A socket pair with one worker.

    Args:
        reactor: watches the socket.
        inbox: cuts what arrives into frames.
        corked: shared by all links of the engine.
        handle: is called with each frame.
        hung_up: is called when the worker has closed its end.
    """

    def __init__(
        self,
        reactor: Reactor,
        inbox: frames.Inbox,
        corked: Corked,
        handle: Callable[[Frame], None],
        hung_up: Callable[[], None],
    ) -> None:
        self._socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (self._socket, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()
        self._reactor = reactor
        self._inbox = inbox
        self._corked = corked
        self._handle = handle
        self._hung_up = hung_up
        self._outbox: deque[memoryview] = deque()
        self._full = False
        self.closed = False
        reactor.watch(self._fd, self._ready)

    def send(self, frame: bytes) -> None:
        """Send a frame now if the socket takes it, else when it does."""
        if self._corked.on:
            self._corked.links.add(self)
        if self._corked.on or self._outbox:
            self._outbox.append(memoryview(frame))
            return
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is dying; the launcher will say how
        if sent < len(frame):
            self._outbox.append(memoryview(frame)[sent:])
            self._wait_for_room(True)

    def send_more(self) -> None:
        """Send what is in the outbox, as far as the socket takes it."""
        outbox = self._outbox
        while outbox and not self.closed:
            try:
                sent = self._socket.sendmsg(list(itertools.islice(outbox, 64)))
            except BlockingIOError:
                self._wait_for_room(True)
                return
            except OSError:
                outbox.clear()
                break
            while sent:
                first = outbox.popleft()
                if sent < len(first):
                    outbox.appendleft(first[sent:])
                sent -= min(sent, len(first))
        self._wait_for_room(False)

    def _wait_for_room(self, full: bool) -> None:
        if full is not self._full and not self.closed:
            self._full = full
            self._reactor.watch_writable(self._fd, full)

    def _ready(self, mask: int) -> None:
        self._corked.on = True
        try:
            if mask & select.POLLOUT:
                self.send_more()
            if mask & ~select.POLLOUT and self.receive() == 0 and not self.closed:
                self._reactor.unwatch(self._fd)
                self._hung_up()
        finally:
            self._corked.release()

    def receive(self) -> int:
        """Read and handle what has come. Return the number of bytes; 0 is the end, -1 nothing now."""
        if self.closed:
            return 0
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        for frame in self._inbox.feed(data):
            try:
                self._handle(frame)
            except Exception:  # the frames behind it must not be lost
                _log.exception("a frame of a worker could not be handled")
            if self.closed:
                return 0
        return len(data)

    def receive_all(self) -> None:
        """Read and handle all that has come."""
        while self.receive() > 0:
            pass

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._fd

    def close(self) -> None:
        """Hang up."""
        self.closed = True
        self._reactor.unwatch(self._fd)
        self._socket.close()
        self._outbox.clear()
