"""The launcher: a small, single-threaded process that starts workers by forking itself.

A fork of the driver would copy the locks of its threads in whatever state they are; a fresh interpreter for each worker
would take 100 ms of imports. So the driver starts one fresh interpreter that has imported what a worker needs and
nothing else, and that interpreter forks. As the workers' parent it also knows how each of them ended.

Workers die with their driver: they hold the read end of a pipe whose write end the driver has, set up so that the
kernel kills the launcher's whole process group when that end closes. This works even if a worker is stopped or runs
C code.
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

from raceway.imports import fast_imports

REQUEST_FDS = ("socket", "output", "driver_arena", "own_arena", "control")
"""The descriptors that come with a request, in this order."""
_PR_SET_PDEATHSIG = 1
_F_SETSIG = 10
_WORKER_PROGRAM = (
    "import sys, json; from raceway.engine.process import launcher; launcher.start_worker(json.loads(sys.argv[1]))"
)


def main(socket_fd: int, driver_alive: int, launcher_alive: int, preload: list[str], portable: bool) -> None:
    """Serve the driver's requests until the driver exits.

    Args:
        socket_fd: the socket to the driver.
        driver_alive: the read end of a pipe that closes when the driver exits.
        launcher_alive: the write end of a pipe, kept open so that the driver notices when this process exits.
        preload: modules to import.
        portable: use only what every POSIX system has.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not portable:
        _kill_group_with_driver(driver_alive)
    with fast_imports(permanent=True):  # permanent: passes of the collector in workers would copy the shared pages
        import raceway.engine.process.worker  # noqa: F401  (imported once for all workers)

        for name in preload:
            __import__(name)
    driver = socket.socket(fileno=socket_fd)
    driver.setblocking(False)
    wake_out, wake_in = socket.socketpair()
    for end in (wake_out, wake_in):
        end.setblocking(False)
    signal.set_wakeup_fd(wake_in.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}  # indices of workers, by pid
    outbox: list[tuple[bytes, list[int]]] = []
    private_fds = [driver.fileno(), wake_out.fileno(), wake_in.fileno(), launcher_alive]
    poll = select.poll()
    poll.register(wake_out, select.POLLIN)
    poll.register(driver_alive, select.POLLIN)
    while True:
        poll.register(driver, select.POLLIN | (select.POLLOUT if outbox else 0))
        events = dict(poll.poll())
        if driver_alive in events:
            _kill_workers_and_exit(children)
        if wake_out.fileno() in events:
            wake_out.recv(4096)
        if events.get(driver.fileno(), 0) & ~select.POLLOUT:
            _handle_requests(driver, driver_alive, children, outbox, private_fds)
        _reap(children, outbox)
        _send_reports(driver, outbox)


def _kill_group_with_driver(driver_alive: int) -> None:
    """Make the kernel kill this process group when the driver's end of the pipe closes."""
    fcntl.fcntl(driver_alive, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(driver_alive, _F_SETSIG, signal.SIGKILL)  # the signal to send instead of SIGIO
    fcntl.fcntl(driver_alive, fcntl.F_SETFL, fcntl.fcntl(driver_alive, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    if select.select([driver_alive], [], [], 0)[0]:
        os._exit(0)  # it closed before this was set up


def _kill_workers_and_exit(children: dict[int, int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _handle_requests(
    driver: socket.socket, driver_alive: int, children: dict[int, int], outbox: list[Any], private_fds: list[int]
) -> None:
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(driver, 1 << 20, len(REQUEST_FDS))
        except BlockingIOError:
            return
        request: dict[str, Any] = pickle.loads(data) if data else {"action": "exit"}
        if request["action"] == "exit":
            _kill_workers_and_exit(children)
        if request["action"] == "kill":
            pids = [pid for pid, worker in children.items() if worker == request["worker"]]
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            continue
        pid = os.fork()
        if pid == 0:
            named_fds = dict(zip(REQUEST_FDS, fds, strict=True)) | {"driver_alive": driver_alive}
            _become_worker(request, named_fds, private_fds)
        for fd in fds:
            os.close(fd)
        children[pid] = request["worker"]
        pidfd = [] if request["portable"] else [os.pidfd_open(pid)]
        outbox.append((pickle.dumps(("started", request["worker"], pid)), pidfd))


def _reap(children: dict[int, int], outbox: list[Any]) -> None:
    """Report the workers that have ended."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        outbox.append((pickle.dumps(("ended", children.pop(pid), os.waitstatus_to_exitcode(status))), []))


def _send_reports(driver: socket.socket, outbox: list[tuple[bytes, list[int]]]) -> None:
    while outbox:
        data, fds = outbox[0]
        try:
            socket.send_fds(driver, [data], fds) if fds else driver.send(data)
        except BlockingIOError:
            return
        except OSError:
            return  # the driver has closed its end: `driver_alive` will show it
        for fd in fds:
            os.close(fd)
        del outbox[0]


def _become_worker(spec: dict[str, Any], fds: dict[str, int], private_fds: list[int]) -> None:
    """Turn this forked copy into a worker, in this interpreter or in a new one. Does not return."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        if not spec["portable"]:
            parent = os.getppid()
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
        for fd in private_fds:
            os.close(fd)
        if spec["new_interpreter"]:
            from raceway.engine.process.worker import thread_environment
            from raceway.engine.shared_memory.control_file import anonymous_file

            for fd in fds.values():
                os.set_inheritable(fd, True)
            spec_fd = anonymous_file(0, spec["portable"])
            os.write(spec_fd, pickle.dumps((spec, fds)))
            os.set_inheritable(spec_fd, True)
            environ = spec["environ"] | thread_environment(spec["threads"])
            environ["PYTHONPATH"] = os.pathsep.join([path for path in spec["path"] if path])
            os.execve(sys.executable, [sys.executable, "-c", _WORKER_PROGRAM, json.dumps(spec_fd)], environ)
        from raceway.engine.process import worker

        worker.run(spec, fds)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def start_worker(spec_fd: int) -> None:
    """Run a worker in a new interpreter: it has more compute threads, or forking is not safe."""
    from raceway.engine.process import worker

    os.lseek(spec_fd, 0, os.SEEK_SET)
    with os.fdopen(spec_fd, "rb") as file:
        spec, fds = pickle.load(file)
    worker.run(spec, fds)
