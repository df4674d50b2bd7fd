"""The driver's side of the launcher: starts it, sends it requests and receives its reports."""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from raceway.engine._reactor import Reactor
from raceway.engine.process.connection import SOCKET_BYTES
from raceway.engine.process.worker import thread_environment


class LauncherClient:
    """A launcher process, and the socket to it.

    Args:
        reactor: watches the socket.
        driver_alive: the read end of a pipe that closes when the driver exits.
        preload: modules for the launcher to import.
        portable: use only what every POSIX system has.
        on_started: called with (worker index, pid, pidfd or None) when a worker's process has started.
        on_ended: called with (worker index, exit code) when it has ended.
        on_launcher_died: called when the launcher itself has died.
    """

    def __init__(
        self,
        reactor: Reactor,
        driver_alive: int,
        preload: Sequence[str],
        portable: bool,
        *,
        on_started: Callable[[int, int, int | None], None],
        on_ended: Callable[[int, int], None],
        on_launcher_died: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._on_started, self._on_ended, self._on_launcher_died = on_started, on_ended, on_launcher_died
        # The socket must preserve message boundaries. The only such kind on macOS does not report that the other end
        # was closed, so a pipe does that.
        kind = socket.SOCK_DGRAM if portable else socket.SOCK_SEQPACKET
        self._socket, launcher_end = socket.socketpair(socket.AF_UNIX, kind)
        self._launcher_alive, launcher_alive_end = os.pipe()
        os.set_blocking(self._launcher_alive, False)
        for end in (self._socket, launcher_end):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
        arguments = (launcher_end.fileno(), driver_alive, launcher_alive_end, list(preload), portable)
        program = (
            f"import sys; sys.path.insert(0, {root!r}); from raceway.engine.process import launcher; "
            f"launcher.main(*{arguments!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            pass_fds=[launcher_end.fileno(), driver_alive, launcher_alive_end],
            stdin=subprocess.DEVNULL,
            env=os.environ | thread_environment(1),
            start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
        )
        launcher_end.close()
        os.close(launcher_alive_end)
        self._socket.setblocking(False)
        reactor.watch(self._socket.fileno(), lambda mask: self._receive())
        reactor.watch(self._launcher_alive, lambda mask: self._check_alive())

    def send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request. It may wait for space in the socket, but not for long: the launcher always reads."""
        data = pickle.dumps(request)
        while True:
            try:
                if fds:
                    socket.send_fds(self._socket, [data], list(fds))
                else:
                    self._socket.send(data)
                return
            except BlockingIOError:
                poll = select.poll()
                poll.register(self._socket, select.POLLOUT)
                poll.poll(1000)
            except OSError:
                return  # it has died, which the reactor will notice

    def _receive(self) -> None:
        while self._socket.fileno() >= 0:
            try:
                data, fds, _, _ = socket.recv_fds(self._socket, 4096, 1)
            except OSError:
                return
            if not data:
                return
            event, worker_index, number = pickle.loads(data)
            if event == "ended":
                self._on_ended(worker_index, number)
            else:
                self._on_started(worker_index, number, fds[0] if fds else None)

    def _check_alive(self) -> None:
        try:
            if os.read(self._launcher_alive, 1):
                return
        except BlockingIOError:
            return  # an event of another descriptor, which had this number before
        self._receive()
        self.close()
        self._on_launcher_died()

    def close(self) -> None:
        """End the launcher and the workers that it has started."""
        if self._socket.fileno() < 0:
            return
        self.send({"action": "exit"})
        for fd in (self._socket.fileno(), self._launcher_alive):
            self._reactor.unwatch(fd)
        self._socket.close()
        os.close(self._launcher_alive)
        self.process.wait()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()
