"""What runs in a worker process of the process engine: one actor, one socket, one thread.

The loop reads frames, runs calls and sends results. While a call waits for an answer of the driver (a nested call), the
same socket is read further, so that answers and new calls come in; other threads of the user's may wait too.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from raceway.engine import _codec, driver_client
from raceway.engine._calls import Home, describe_error, name_of, revive_error, run_call
from raceway.engine._codec import Payload
from raceway.engine._handles import AwayTable
from raceway.engine._reactor import Spin
from raceway.engine._shared_memory import Arena, ArenaView, Control
from raceway.engine.base import Ref
from raceway.engine.malloc import keep_freed_memory
from raceway.engine.process import frames
from raceway.engine.process.output import LogLines
from raceway.errors import EngineClosed


class Worker:
    """The life of one worker: `main` until the driver hangs up."""

    def __init__(self, spec: dict[str, Any], fds: dict[str, int]) -> None:
        self.uid: str = spec["uid"]
        self.actor: str = spec["name"]
        self._hands_back: bool = spec["hands_back"]
        self._socket = socket.socket(fileno=fds["socket"])
        control = Control(fds["control"], spec["worker"])
        self._arena = Arena(control, 1 + spec["worker"], spec["budget"], fds["own_arena"])
        self._driver_row = control.row(1)
        self._handles = AwayTable(self.uid)
        self._handles.read = self._fetch
        self._inbox = frames.Inbox(ArenaView(fds["driver_arena"], control.row(0)), self._handles.arrived)
        self._calls: deque[tuple[int, Payload]] = deque()
        self._objects: dict[int, Payload] = {}
        self._answers: dict[int, tuple[int, Payload]] = {}
        self._num_requests = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reading = False
        self._followers = 0
        self._spin = Spin()
        self._parked = 0
        self._factory: Any = None
        self._home = Home(None)

    def main(self) -> None:
        driver_client.set_driver_client(self)
        self._read_until(lambda: self._factory)
        try:
            make, args, kwargs = _codec.decode(self._factory)
            self._factory = None
            self._home.object = make(*args, **kwargs)
        except BaseException as error:
            self._send(frames.UNREADY, 0, describe_error(error, self.actor, "__init__"))
            return
        self._send(frames.READY, os.getpid(), frames.EMPTY)
        del make, args, kwargs
        calls = self._calls
        while True:
            if not calls:
                self._read_until(calls.__len__)
            self._run()

    def _run(self) -> None:
        """Run the next call and send its result, having let go of its arguments: the driver may want their memory."""
        id, call = self._calls.popleft()
        had_handles = call.handles is not None
        start = time.perf_counter_ns()
        kind, parcel = self._outcome(call)
        micros = min((time.perf_counter_ns() - start) // 1000, 0xFFFFFFFF)
        del call
        self._send_parcel(kind, id, parcel, micros)
        if had_handles or self._handles.dropped:
            self._send_releases()

    def _outcome(self, call: Payload) -> tuple[int, frames.Parcel]:
        decoded = None
        try:
            decoded = _codec.decode(call)
            result = run_call(self._home, decoded, self._read_object)
            return frames.RESULT, self._parcel(_codec.encode(result, "the result"))
        except BaseException as error:
            method = name_of(decoded[0]) if decoded is not None else "?"
            return frames.FAILURE, self._parcel(describe_error(error, self.actor, method, skip=2))

    # Out.

    def _parcel(self, payload: Payload) -> frames.Parcel:
        with self._lock:  # the user's threads may send too
            return frames.Parcel(payload, self._arena)

    def _send(self, kind: int, id: int, payload: Payload) -> None:
        self._send_parcel(kind, id, self._parcel(payload))

    def _send_parcel(self, kind: int, id: int, parcel: frames.Parcel, extra: int = 0) -> None:
        if parcel.slot is not None:
            parcel.slot.sent_to(self._driver_row)
        self._send_frame(parcel.frame(kind, id, extra))

    def _send_frame(self, frame: bytes) -> None:
        try:
            with self._lock:
                self._socket.sendall(frame)
        except OSError:
            raise EngineClosed("the driver is gone") from None

    def _send_releases(self) -> None:
        releases = self._handles.take_releases()
        if releases:
            flat = [number for release in releases for number in release]
            self._send_frame(frames.bare_frame(frames.RELEASE, 0, struct.pack(f"<{len(flat)}Q", *flat)))

    # In.

    def _read_until(self, ready: Callable[[], Any]) -> None:
        """Read frames until `ready()`. Of several threads that wait, one reads for all."""
        with self._lock:
            while not ready():
                if self._reading:
                    self._followers += 1
                    self._changed.wait()
                    self._followers -= 1
                    continue
                self._reading = True
                self._lock.release()
                try:
                    data = self._spin.wait(self._receive, -1)
                except OSError:
                    data = b""
                finally:
                    self._lock.acquire()
                    self._reading = False
                    if self._followers:
                        self._changed.notify_all()
                if not data:
                    raise EngineClosed("the driver is gone")
                for kind, id, _, payload in self._inbox.feed(data):
                    self._take(kind, id, payload)

    def _receive(self, timeout: float) -> bytes | None:
        if timeout:
            return self._socket.recv(1 << 16)
        try:
            return self._socket.recv(1 << 16, socket.MSG_DONTWAIT) or b""
        except BlockingIOError:
            return None

    def _take(self, kind: int, id: int, payload: Payload) -> None:
        if kind == frames.CALL:
            if self._parked and self._hands_back:
                self._give_back([id])
            else:
                self._calls.append((id, payload))
        elif kind == frames.MAKE:
            self._factory = payload
        elif kind == frames.OBJECT:
            self._objects[id] = payload
        elif kind == frames.DROP:
            self._objects.pop(id, None)
            self._handles.value_gone(id)
        else:
            self._answers[id] = (kind, payload)

    def _give_back(self, ids: list[int]) -> None:
        self._send_frame(frames.bare_frame(frames.GIVEN_BACK, 0, struct.pack(f"<{len(ids)}Q", *ids)))

    # What calls running here can ask for.

    def _read_object(self, id: int) -> Any:
        return _codec.decode(self._objects[id])

    def _fetch(self, id: int) -> Any:
        """Read a stored value by its reference."""
        if id not in self._objects:
            self.request(("fetch", id))
        return self._read_object(id)

    def request(self, value: Any, *, parks: bool = False) -> Any:
        """Ask the driver and wait for its answer."""
        return self._ask(frames.REQUEST, _codec.encode(value), parks)

    def put(self, value: Any) -> Ref:
        """Store a value with the driver, which does not look at it."""
        return self._ask(frames.PUT, _codec.encode(value), False)  # type: ignore[no-any-return]

    def _ask(self, kind: int, payload: Payload, parks: bool) -> Any:
        with self._lock:
            self._num_requests += 1
            id = self._num_requests
            if parks:
                self._parked += 1
                if self._hands_back and self._calls:
                    self._give_back([call for call, _ in self._calls])
                    self._calls.clear()
            self._send(kind, id, payload)
        try:
            self._read_until(lambda: id in self._answers)
        finally:
            with self._lock:
                self._parked -= parks
        kind, answer = self._answers.pop(id)
        if kind == frames.REFUSAL:
            raise revive_error(answer)
        return _codec.decode(answer)


_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Return the variables that hold numpy, torch and their kin to so many threads, if set before they are imported."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def run(spec: dict[str, Any], fds: dict[str, int]) -> None:
    """Become a worker: take on the driver's surroundings, then serve until it hangs up. Does not return."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(spec["environ"])
    os.environ.update(thread_environment(spec["threads"]))
    with contextlib.suppress(OSError):
        os.chdir(spec["cwd"])
    sys.path[:] = spec["path"]
    sys.argv[:] = spec["argv"]
    os.dup2(fds["output"], 1)
    os.dup2(fds["output"], 2)
    os.close(fds["output"])
    # Not reconfigured but made anew: the launcher's may be files, which cannot be turned into pipes.
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    logging.lastResort = LogLines()
    import faulthandler

    faulthandler.enable()
    keep_freed_memory()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # or every worker forked from here would draw the same numbers
    if spec["portable"]:
        threading.Thread(target=_die_with_driver, args=(fds["life"],), daemon=True).start()
    status = 0
    try:
        Worker(spec, fds).main()
    except EngineClosed:
        pass
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    for output in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            output.flush()
    os._exit(status)  # nothing of the launcher's that was inherited may run its clean-up here


def _die_with_driver(life: int) -> None:
    select.select([life], [], [])
    os._exit(1)
