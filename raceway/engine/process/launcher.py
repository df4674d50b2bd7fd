"""The launcher: a small, single-threaded process that starts workers by forking itself.

A fork of the driver would copy its threads' locks in whatever state they are; a fresh interpreter for each worker takes
100 ms of importing. So the driver starts one fresh interpreter that has imported what a worker needs and nothing else,
and that forks. Being the workers' parent it also knows how each of them ended.

Workers die with their driver: they hold the read end of a pipe whose write end the driver has, set up so that the
kernel kills the launcher's whole process group when that closes. A worker cannot miss it, even stopped or deep in C
code.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import pickle
import select
import signal
import socket
import sys
from typing import Any

FDS = ("socket", "output", "driver_arena", "own_arena", "control")
"""The descriptors that come with a request, in this order."""
_PR_SET_PDEATHSIG = 1
_BOOT = "import sys, json; from raceway.engine.process import launcher; launcher.boot_worker(json.loads(sys.argv[1]))"


def main(control_fd: int, life: int, pulse: int, preload: list[str], portable: bool) -> None:
    """Serve the driver's requests until it is gone. `pulse` is held open so that the driver sees when this one is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not portable:
        _tie_to_driver(life)
    import raceway.engine.process.worker  # noqa: F401  (what every worker needs, imported once for all)

    for name in preload:
        __import__(name)
    control = socket.socket(fileno=control_fd)
    control.setblocking(False)
    wake_out, wake_in = socket.socketpair()
    for end in (wake_out, wake_in):
        end.setblocking(False)
    signal.set_wakeup_fd(wake_in.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    outbox: list[tuple[bytes, list[int]]] = []
    private = [control.fileno(), wake_out.fileno(), wake_in.fileno(), pulse]
    poll = select.poll()
    poll.register(wake_out, select.POLLIN)
    poll.register(life, select.POLLIN)
    while True:
        poll.register(control, select.POLLIN | (select.POLLOUT if outbox else 0))
        events = dict(poll.poll())
        if life in events:
            _leave(children)
        if wake_out.fileno() in events:
            wake_out.recv(4096)
        if events.get(control.fileno(), 0) & ~select.POLLOUT:
            _receive(control, life, children, outbox, private)
        _reap(children, outbox)
        _deliver(control, outbox)


def _tie_to_driver(life: int) -> None:
    """Have the kernel kill this process group when the driver's end of the pipe closes."""
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(life, 10, signal.SIGKILL)  # F_SETSIG: the signal to send instead of SIGIO
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    if select.select([life], [], [], 0)[0]:
        os._exit(0)  # it closed before that was set up


def _leave(children: dict[int, int]) -> None:
    """End the workers that are left, and this process."""
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _receive(
    control: socket.socket, life: int, children: dict[int, int], outbox: list[Any], private: list[int]
) -> None:
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(control, 1 << 20, len(FDS))
        except BlockingIOError:
            return
        request: dict[str, Any] = pickle.loads(data) if data else {"do": "exit"}
        if request["do"] == "exit":
            _leave(children)
        if request["do"] == "kill":
            pids = [pid for pid, worker in children.items() if worker == request["worker"]]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            continue
        pid = os.fork()
        if pid == 0:
            _become_worker(request, dict(zip(FDS, fds, strict=True)) | {"life": life}, private)
        for fd in fds:
            os.close(fd)
        children[pid] = request["worker"]
        pidfd = [] if request["portable"] else [os.pidfd_open(pid)]
        outbox.append((pickle.dumps(("started", request["worker"], pid)), pidfd))


def _reap(children: dict[int, int], outbox: list[Any]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        outbox.append((pickle.dumps(("ended", children.pop(pid), os.waitstatus_to_exitcode(status))), []))


def _deliver(control: socket.socket, outbox: list[tuple[bytes, list[int]]]) -> None:
    while outbox:
        data, fds = outbox[0]
        try:
            socket.send_fds(control, [data], fds) if fds else control.send(data)
        except BlockingIOError:
            return
        except OSError:
            return  # the driver has hung up: `life` will say so
        for fd in fds:
            os.close(fd)
        del outbox[0]


def _become_worker(spec: dict[str, Any], fds: dict[str, int], private: list[int]) -> None:
    """Turn this forked copy into a worker, by going on or by starting a fresh interpreter. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if not spec["portable"]:
            parent = os.getppid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        for fd in private:
            os.close(fd)
        if spec["fresh"]:
            from raceway.engine._shared_memory import anonymous_file
            from raceway.engine.process.worker import thread_environment

            for fd in fds.values():
                os.set_inheritable(fd, True)
            spec_fd = anonymous_file(0, spec["portable"])
            os.write(spec_fd, pickle.dumps((spec, fds)))
            os.set_inheritable(spec_fd, True)
            environ = spec["environ"] | thread_environment(spec["threads"])
            environ["PYTHONPATH"] = os.pathsep.join([p for p in spec["path"] if p])
            os.execve(sys.executable, [sys.executable, "-c", _BOOT, json.dumps(spec_fd)], environ)
        from raceway.engine.process import worker

        worker.run(spec, fds)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def boot_worker(spec_fd: int) -> None:
    """Start as a worker that has an interpreter of its own (more compute threads, or no safe fork)."""
    from raceway.engine.process import worker

    os.lseek(spec_fd, 0, os.SEEK_SET)
    with os.fdopen(spec_fd, "rb") as file:
        spec, fds = pickle.load(file)
    worker.run(spec, fds)
