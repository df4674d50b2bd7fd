"""The driver's side of the launcher: it is started here, told what to start, and listened to."""

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
from raceway.engine.process.link import SOCKET_BYTES
from raceway.engine.process.worker import thread_environment


class Starter:
    """A launcher process, and the line to it.

    Args:
        reactor: watches the line.
        life: the read end of the pipe that tells the workers that the driver lives.
        preload: modules for the launcher to import.
        portable: use only what every POSIX system has.
        started: is called with (place, pid, pidfd or None) when a worker's process has begun.
        ended: is called with (place, exit code) when it has ended.
        gone: is called when the launcher itself has died.
    """

    def __init__(
        self,
        reactor: Reactor,
        life: int,
        preload: Sequence[str],
        portable: bool,
        *,
        started: Callable[[int, int, int | None], None],
        ended: Callable[[int, int], None],
        gone: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._started, self._ended, self._gone = started, ended, gone
        # Messages must keep their bounds. Of the kinds that do, macOS has only the one that does not tell of an end,
        # so there is a pipe for that.
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM if portable else socket.SOCK_SEQPACKET)
        self._pulse, pulse = os.pipe()
        os.set_blocking(self._pulse, False)
        for end in (self._line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), *[os.pardir] * 3))
        boot = (
            f"import sys; sys.path.insert(0, {root!r}); from raceway.engine.process import launcher; "
            f"launcher.main({theirs.fileno()}, {life}, {pulse}, {list(preload)!r}, {portable})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", boot],
            pass_fds=[theirs.fileno(), life, pulse],
            stdin=subprocess.DEVNULL,
            env=os.environ | thread_environment(1),
            start_new_session=True,  # Ctrl-C on the terminal is for the driver alone
        )
        theirs.close()
        os.close(pulse)
        self._line.setblocking(False)
        reactor.watch(self._line.fileno(), lambda mask: self._listen())
        reactor.watch(self._pulse, lambda mask: self._died())

    def tell(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request. The launcher always reads, so waiting for room cannot last."""
        data = pickle.dumps(request)
        while True:
            try:
                if fds:
                    socket.send_fds(self._line, [data], list(fds))
                else:
                    self._line.send(data)
                return
            except BlockingIOError:
                room = select.poll()
                room.register(self._line, select.POLLOUT)
                room.poll(1000)
            except OSError:
                return  # it is gone, and will be found to be

    def _listen(self) -> None:
        while self._line.fileno() >= 0:
            try:
                data, fds, _, _ = socket.recv_fds(self._line, 4096, 1)
            except OSError:
                return
            if not data:
                return
            what, place, number = pickle.loads(data)
            if what == "ended":
                self._ended(place, number)
            else:
                self._started(place, number, fds[0] if fds else None)

    def _died(self) -> None:
        try:
            if os.read(self._pulse, 1):
                return
        except BlockingIOError:
            return  # an event of a descriptor that had this number before
        self._listen()
        self.close()
        self._gone()

    def close(self) -> None:
        """End the launcher, and whatever it has started."""
        if self._line.fileno() < 0:
            return
        self.tell({"do": "exit"})
        for fd in (self._line.fileno(), self._pulse):
            self._reactor.unwatch(fd)
        self._line.close()
        os.close(self._pulse)
        self.process.wait()

    def fileno(self) -> int:
        """Return the descriptor of the line."""
        return self._line.fileno()


def gpus() -> list[str]:
    """Return the names of the gpus that this process may use."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [gpu for gpu in given.split(",") if gpu.strip() not in ("", "-1")]
    try:
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    except OSError:
        return []


def gpu_environment(count: float, place: int) -> dict[str, str]:
    """Give a worker its gpus, turn by turn; workers that ask for fractions share."""
    there = gpus()
    if not count or not there:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(there[(place + i) % len(there)] for i in range(max(1, round(count))))}
