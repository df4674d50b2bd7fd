"""The driver's end of the socket to a worker. It never blocks, whatever the worker does."""

from __future__ import annotations

import itertools
import logging
import select
import socket
from collections import deque
from collections.abc import Callable

from raceway.engine._reactor import Reactor
from raceway.engine.process.message_frames import Frame, FrameDecoder

_log = logging.getLogger(__name__)

SOCKET_BYTES = 1 << 20


class SendBatch:
    """Holds back frames while results are handled, so that the frames they lead to are sent in one go."""

    def __init__(self) -> None:
        self.active = False
        self.connections: set[WorkerConnection] = set()

    def flush(self) -> None:
        """Send the frames that were held back."""
        self.active = False
        connections, self.connections = self.connections, set()
        for connection in connections:
            connection.flush()


class WorkerConnection:
    """A socket pair with one worker.

    Args:
        reactor: watches the socket.
        decoder: splits the received bytes into frames.
        batch: shared by all connections of the engine.
        on_frame: called with each frame.
        on_disconnect: called when the worker has closed its end.
    """

    def __init__(
        self,
        reactor: Reactor,
        decoder: FrameDecoder,
        batch: SendBatch,
        on_frame: Callable[[Frame], None],
        on_disconnect: Callable[[], None],
    ) -> None:
        self._socket, self.worker_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (self._socket, self.worker_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        self._socket.setblocking(False)
        self._fd = self._socket.fileno()
        self._reactor = reactor
        self._decoder = decoder
        self._batch = batch
        self._on_frame = on_frame
        self._on_disconnect = on_disconnect
        self._outbox: deque[memoryview] = deque()
        self._waits_for_space = False
        self.closed = False
        reactor.watch(self._fd, self._handle_events)

    def send(self, frame: bytes) -> None:
        """Send a frame at once if the socket has space for it, else as soon as it has."""
        if self._batch.active:
            self._batch.connections.add(self)
        if self._batch.active or self._outbox:
            self._outbox.append(memoryview(frame))
            return
        try:
            num_sent = self._socket.send(frame)
        except BlockingIOError:
            num_sent = 0
        except OSError:
            return  # the worker is dying; the launcher will report how
        if num_sent < len(frame):
            self._outbox.append(memoryview(frame)[num_sent:])
            self._wait_for_space(True)

    def flush(self) -> None:
        """Send as much of the outbox as the socket has space for."""
        outbox = self._outbox
        while outbox and not self.closed:
            try:
                num_sent = self._socket.sendmsg(list(itertools.islice(outbox, 64)))
            except BlockingIOError:
                self._wait_for_space(True)
                return
            except OSError:
                outbox.clear()
                break
            while num_sent:
                first = outbox.popleft()
                if num_sent < len(first):
                    outbox.appendleft(first[num_sent:])
                num_sent -= min(num_sent, len(first))
        self._wait_for_space(False)

    def _wait_for_space(self, waits: bool) -> None:
        if waits is not self._waits_for_space and not self.closed:
            self._waits_for_space = waits
            self._reactor.watch_writable(self._fd, waits)

    def _handle_events(self, mask: int) -> None:
        self._batch.active = True
        try:
            if mask & select.POLLOUT:
                self.flush()
            if mask & ~select.POLLOUT and self.receive() == 0 and not self.closed:
                self._reactor.unwatch(self._fd)
                self._on_disconnect()
        finally:
            self._batch.flush()

    def receive(self) -> int:
        """Read the socket once and handle the frames. Return the number of bytes; 0 at the end, -1 if none came yet."""
        if self.closed:
            return 0
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        for frame in self._decoder.feed(data):
            try:
                self._on_frame(frame)
            except Exception:  # the frames after it must not be lost
                _log.exception("a frame of a worker could not be handled")
            if self.closed:
                return 0
        return len(data)

    def receive_all(self) -> None:
        """Read and handle everything that has arrived."""
        while self.receive() > 0:
            pass

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._fd

    def close(self) -> None:
        """Close the driver's end."""
        self.closed = True
        self._reactor.unwatch(self._fd)
        self._socket.close()
        self._outbox.clear()
