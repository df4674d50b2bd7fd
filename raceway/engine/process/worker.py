"""The worker process of the process engine: one actor, one socket, one thread.

The loop reads frames, runs calls and sends results. While a call waits for the driver's reply to a request (a nested
call), it keeps reading the same socket, so that replies and new calls are received; threads of the user may wait too.
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
from raceway.engine._calls import ActorContext, decode_error, encode_error, method_name, run_call
from raceway.engine._codec import Payload
from raceway.engine._reactor import SpinWait
from raceway.engine._reference_counts import WorkerHandles
from raceway.engine.base import Ref
from raceway.engine.malloc import keep_freed_memory
from raceway.engine.process import message_frames
from raceway.engine.process.output import WorkerLogHandler
from raceway.engine.shared_memory.arena import Arena
from raceway.engine.shared_memory.arena_reader import ArenaReader
from raceway.engine.shared_memory.control_file import ControlFile
from raceway.errors import EngineClosed


class Worker:
    """A worker: it runs `main` until the driver closes the socket.

    Args:
        spec: the driver's request to the launcher.
        fds: the descriptors shared with the driver, by the names in `launcher.REQUEST_FDS`.
    """

    def __init__(self, spec: dict[str, Any], fds: dict[str, int]) -> None:
        self.uid: str = spec["uid"]
        self.actor: str = spec["name"]
        self._returns_queued_calls: bool = spec["returns_queued_calls"]
        self._socket = socket.socket(fileno=fds["socket"])
        control = ControlFile(fds["control"], spec["worker"])
        self._arena = Arena(control, 1 + spec["worker"], spec["budget"], fds["own_arena"])
        self._driver_releases = control.row(1)  # in which the driver releases blocks of this worker's arena
        self._handles = WorkerHandles(self.uid)
        self._handles.read = self._fetch
        arena_reader = ArenaReader(fds["driver_arena"], control.row(0))
        self._decoder = message_frames.FrameDecoder(arena_reader, self._handles.count_arrivals)
        self._calls: deque[tuple[int, Payload]] = deque()
        self._stored_values: dict[int, Payload] = {}
        self._replies: dict[int, tuple[int, Payload]] = {}
        self._num_requests = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reading = False  # a thread reads the socket,
        self._num_followers = 0  # and this many wait for it
        self._spin_wait = SpinWait()
        self._num_waiting_for_calls = 0
        self._factory: Any = None
        self._context = ActorContext(None)

    def main(self) -> None:
        """Construct the actor's object, then run calls until the driver closes the socket."""
        driver_client.set_driver_client(self)
        self._read_until(lambda: self._factory)
        try:
            factory, args, kwargs = _codec.decode(self._factory)
            self._factory = None
            self._context.object = factory(*args, **kwargs)
        except BaseException as error:
            self._send(message_frames.START_FAILED, 0, encode_error(error, self.actor, "__init__"))
            return
        self._send(message_frames.READY, os.getpid(), message_frames.EMPTY)
        del factory, args, kwargs
        calls = self._calls
        while True:
            if not calls:
                self._read_until(calls.__len__)
            self._run()

    def _run(self) -> None:
        """Run the next call. Drop its arguments before sending the result: the driver may want their memory."""
        id, call = self._calls.popleft()
        had_handles = call.handles is not None
        start = time.perf_counter_ns()
        kind, packed = self._execute(call)
        micros = min((time.perf_counter_ns() - start) // 1000, 0xFFFFFFFF)
        del call
        self._send_packed(kind, id, packed, micros)
        if had_handles or self._handles.dropped:
            self._send_releases()

    def _execute(self, call: Payload) -> tuple[int, message_frames.PackedPayload]:
        decoded = None
        try:
            decoded = _codec.decode(call)
            result = run_call(self._context, decoded, self._read_stored)
            return message_frames.RESULT, self._pack(_codec.encode(result, "the result"))
        except BaseException as error:
            method = method_name(decoded[0]) if decoded is not None else "?"
            return message_frames.CALL_FAILED, self._pack(encode_error(error, self.actor, method, skip=2))

    # Sending.

    def _pack(self, payload: Payload) -> message_frames.PackedPayload:
        with self._lock:  # threads of the user may send too
            return message_frames.PackedPayload(payload, self._arena)

    def _send(self, kind: int, id: int, payload: Payload) -> None:
        self._send_packed(kind, id, self._pack(payload))

    def _send_packed(self, kind: int, id: int, packed: message_frames.PackedPayload, extra: int = 0) -> None:
        if packed.block is not None:
            packed.block.expect_release(self._driver_releases)
        self._send_frame(packed.frame(kind, id, extra))

    def _send_frame(self, frame: bytes) -> None:
        try:
            with self._lock:
                self._socket.sendall(frame)
        except OSError:
            raise EngineClosed("the driver is gone") from None

    def _send_releases(self) -> None:
        releases = self._handles.take_releases()
        if releases:
            numbers = [number for release in releases for number in release]
            body = struct.pack(f"<{len(numbers)}Q", *numbers)
            self._send_frame(message_frames.bare_frame(message_frames.RELEASE_HANDLES, 0, body))

    # Receiving.

    def _read_until(self, ready: Callable[[], Any]) -> None:
        """Read frames until `ready()`. If several threads wait, one of them reads for all."""
        with self._lock:
            while not ready():
                if self._reading:
                    self._num_followers += 1
                    self._changed.wait()
                    self._num_followers -= 1
                    continue
                self._reading = True
                self._lock.release()
                try:
                    data = self._spin_wait.wait(self._receive, -1)
                except OSError:
                    data = b""
                finally:
                    self._lock.acquire()
                    self._reading = False
                    if self._num_followers:
                        self._changed.notify_all()
                if not data:
                    raise EngineClosed("the driver is gone")
                for kind, id, _, payload in self._decoder.feed(data):
                    self._handle_frame(kind, id, payload)

    def _receive(self, timeout: float) -> bytes | None:
        if timeout:
            return self._socket.recv(1 << 16)
        try:
            return self._socket.recv(1 << 16, socket.MSG_DONTWAIT) or b""
        except BlockingIOError:
            return None

    def _handle_frame(self, kind: int, id: int, payload: Payload) -> None:
        if kind == message_frames.CALL:
            if self._num_waiting_for_calls and self._returns_queued_calls:
                self._return_calls([id])
            else:
                self._calls.append((id, payload))
        elif kind == message_frames.CONSTRUCT:
            self._factory = payload
        elif kind == message_frames.STORED_VALUE:
            self._stored_values[id] = payload
        elif kind == message_frames.DROP_VALUE:
            self._stored_values.pop(id, None)
            self._handles.forget_value(id)
        else:
            self._replies[id] = (kind, payload)

    def _return_calls(self, ids: list[int]) -> None:
        self._send_frame(message_frames.bare_frame(message_frames.RETURN_CALLS, 0, struct.pack(f"<{len(ids)}Q", *ids)))

    # Requests to the driver: see `driver_client.DriverClient`.

    def _read_stored(self, id: int) -> Any:
        return _codec.decode(self._stored_values[id])

    def _fetch(self, id: int) -> Any:
        """Read a stored value by its id, after requesting it if it is not here."""
        if id not in self._stored_values:
            self.request(("fetch", id))
        return self._read_stored(id)

    def request(self, value: Any, *, waits_for_calls: bool = False) -> Any:
        """Send the driver a request and wait for its reply."""
        return self._request(message_frames.REQUEST, _codec.encode(value), waits_for_calls)

    def put(self, value: Any) -> Ref:
        """Store a value with the driver, which does not decode it."""
        return self._request(message_frames.PUT, _codec.encode(value), False)  # type: ignore[no-any-return]

    def _request(self, kind: int, payload: Payload, waits_for_calls: bool) -> Any:
        with self._lock:
            self._num_requests += 1
            id = self._num_requests
            if waits_for_calls:
                self._num_waiting_for_calls += 1
                if self._returns_queued_calls and self._calls:
                    self._return_calls([call_id for call_id, _ in self._calls])
                    self._calls.clear()
            self._send(kind, id, payload)
        try:
            self._read_until(lambda: id in self._replies)
        finally:
            with self._lock:
                self._num_waiting_for_calls -= waits_for_calls
        kind, reply = self._replies.pop(id)
        if kind == message_frames.REPLY_ERROR:
            raise decode_error(reply)
        return _codec.decode(reply)


_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def thread_environment(threads: int) -> dict[str, str]:
    """Return the variables that limit the compute threads of numpy, torch and the like, if set before their import."""
    return dict.fromkeys(_THREAD_VARIABLES, str(threads))


def run(spec: dict[str, Any], fds: dict[str, int]) -> None:
    """Turn this process into a worker with the driver's environment, and run it until it ends. Does not return."""
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
    # New streams, not reconfigured ones: the launcher's may be files, and these are pipes.
    for fd, name in ((1, "stdout"), (2, "stderr")):
        stream = open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    logging.lastResort = WorkerLogHandler()
    import faulthandler

    faulthandler.enable()
    keep_freed_memory()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # or all workers forked from this process would sample the same numbers
    if spec["portable"]:
        threading.Thread(target=_exit_with_driver, args=(fds["driver_alive"],), daemon=True).start()
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
    os._exit(status)  # exit handlers inherited from the launcher must not run here


def _exit_with_driver(driver_alive: int) -> None:
    select.select([driver_alive], [], [])
    os._exit(1)
