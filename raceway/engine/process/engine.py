"""The process engine: actors in worker processes on this machine.

Every worker has a socket for small frames (`connection`, `frames`); arrays go through shared memory (`shared_memory`)
and are not copied by the reader. `worker_processes` starts and ends the workers, by way of a `launcher` that forks
them; `worker` is what runs in them.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import struct
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from raceway.engine import _codec
from raceway.engine._calls import decode_error, encode_error
from raceway.engine._codec import Payload
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine._reactor import Reactor
from raceway.engine._reference_counts import Handle
from raceway.engine.base import Actor, Message, Ref, Resources
from raceway.engine.process import message_frames
from raceway.engine.process.actor import ProcessActor
from raceway.engine.process.connection import SendBatch, WorkerConnection
from raceway.engine.process.gpus import gpu_environment, visible_gpus
from raceway.engine.process.worker_processes import WorkerProcesses
from raceway.engine.shared_memory.arena import Arena
from raceway.engine.shared_memory.arena_reader import ArenaReader
from raceway.engine.shared_memory.control_file import ControlFile
from raceway.errors import ActorStartError, ConfigError, ObjectFreed, ResourceError, SharedMemoryError


class ProcessEngine(EngineCore):
    """Actors in processes of this machine.

    Args:
        shared_memory: bytes of shared memory that messages and stored values may take together; half of the machine's
            memory by default. It is allocated as needed, not in advance.
        preload: modules that the launcher imports once, so that workers need not import them (``["torch"]``).
        clock: the source of time for deadlines and back-off.
        portable: use only what every POSIX system has, to test on Linux what runs on macOS.
    """

    name = "process"

    def __init__(
        self,
        *,
        shared_memory: int | None = None,
        preload: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
        portable: bool = sys.platform != "linux",
    ) -> None:
        if sys.platform == "win32":
            raise ConfigError("the process engine needs Linux or macOS. On Windows use WSL, or engine='inline'.")
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        budget = total // 2 if shared_memory is None else shared_memory
        if not isinstance(budget, int) or budget < 1 << 20:
            raise ConfigError(f"shared_memory must be a number of bytes, at least 1 MiB, not {shared_memory!r}")
        _raise_open_files_limit()
        num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        super().__init__(Reactor(clock), num_cores)
        self._budget = budget
        self._portable = portable
        self._control = ControlFile()
        self._arena = Arena(self._control, 0, budget)
        self._batch = SendBatch()
        self._value_holders: dict[int, set[ProcessActor]] = {}  # by stored value, the actors whose workers hold it
        self._processes = WorkerProcesses(
            self.reactor, list(preload), portable, self._declare_dead, is_closed=lambda: self.closed
        )
        self._workers = self._processes.actors
        self.reactor.cores_busy = self._cores_busy
        _open_engines.add(self)

    def _cores_busy(self) -> bool:
        """Whether there is a busy worker for every core."""
        num_free = self.capacity
        for actor in self._workers.values():
            if actor.calls:
                num_free -= 1
                if num_free <= 0:
                    return True
        return False

    # Starting and ending a worker.

    def check_resources(self, needs: Resources) -> None:
        """Raise ResourceError if this machine can never provide these resources."""
        if needs.custom:
            raise ResourceError(
                f"the process engine has cpus and gpus, not {sorted(needs.custom)}. Custom resources need Ray."
            )
        num_gpus = len(visible_gpus())
        if needs.gpus > num_gpus:
            raise ResourceError(f"{needs.gpus:g} gpus were requested, but this machine has {num_gpus}")

    def _new_actor(self, *args: Any) -> ProcessActor:
        return ProcessActor(self, *args)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, ProcessActor)
        index = self._processes.next_index()
        # Steps that can fail come before anything is opened.
        surroundings = {"cwd": os.getcwd(), "path": [os.path.abspath(entry) for entry in sys.path], "argv": sys.argv}
        factory = message_frames.PackedPayload(actor.factory, self._arena)
        try:
            actor.open_channels(index, self._control, self.reactor, self._portable, partial(self._connect, actor))
        except OSError as error:
            raise ResourceError(f"{actor.name} cannot be started: {error}. A worker takes five open files.") from error
        request = {
            "uid": self.uid,
            "name": actor.name,
            "budget": self._budget,
            "threads": actor.threads,
            "new_interpreter": actor.threads != 1 or self._portable,
            "returns_queued_calls": actor.returns_queued_calls,
            "environ": dict(os.environ) | gpu_environment(actor.resources.gpus, index),
            **surroundings,
        }
        worker_fds = [actor.connection.worker_end.fileno(), actor.output.worker_fd]
        self._processes.start(actor, request, [*worker_fds, self._arena.fd, actor.arena_reader.fd, self._control.fd])
        self._send(actor, message_frames.CONSTRUCT, 0, factory)
        incarnation = actor.incarnation
        self.reactor.call_at(self.clock() + actor.start_timeout, lambda: self._check_started(actor, incarnation))

    def _connect(self, actor: ProcessActor, arena_reader: ArenaReader) -> WorkerConnection:
        return WorkerConnection(
            self.reactor,
            message_frames.FrameDecoder(arena_reader, self._make_handles),
            self._batch,
            on_frame=lambda frame: self._handle_frame(actor, frame),
            # A worker that ends is reported by the launcher. One that only closed its socket must be killed.
            on_disconnect=lambda: self._processes.kill(actor),
        )

    def _make_handles(self, ids: tuple[int, ...]) -> list[Handle]:
        return [Handle(self.handles, id) for id in ids]

    def _check_started(self, actor: ProcessActor, incarnation: int) -> None:
        if actor.incarnation == incarnation and not actor.ready.done():
            text = f"{actor.name} was not ready after {actor.start_timeout:g} s (start_timeout)"
            self._declare_dead(actor, ActorStartError(text + actor.output.tail(), actor.name))

    def _end(self, actor: CoreActor) -> None:
        """Kill a worker, unless it is idle and the engine is being closed: then it exits by itself."""
        assert isinstance(actor, ProcessActor)
        if self._workers.get(actor.index) is not actor:
            return  # it could not be started
        exits_by_itself = self.closed and actor.ready.done() and not actor.calls
        self._processes.remove(actor, kill=not exits_by_itself)
        self._control.bytes_used[1 + actor.index] = 0
        self._arena.remove_reader(actor.releases)
        actor.close_channels()
        for id in actor.held_values:
            self._value_holders.get(id, set()).discard(actor)  # no entry if Ctrl-C interrupted `_discard`
        actor.held_values.clear()
        actor.forget_process()

    # Frames to a worker.

    def _detach_arguments(self, message: Message) -> None:
        with self.lock:
            if self.handles.dropped:
                self.handles.sweep()
            message.wire = message_frames.PackedPayload(message.payload, self._arena)
        message.payload = message_frames.EMPTY

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, ProcessActor)
        for ref in message.refs:
            self._send_stored(actor, ref.id)
        self._send(actor, message_frames.CALL, id, message.wire)

    def prefetch(self, actor: Actor, refs: Sequence[Ref]) -> None:
        """Send an actor stored values that it is about to read. Called with the lock."""
        assert isinstance(actor, ProcessActor)
        for ref in refs:
            self._send_stored(actor, ref.id)

    def _send_stored(self, actor: ProcessActor, id: int) -> None:
        """Send a stored value to a worker that does not hold it yet."""
        if id not in actor.held_values:
            stored = self._stored.get(id)
            if stored is None:
                raise ObjectFreed(f"reference {id} is not stored here any more")
            actor.held_values.add(id)
            self._value_holders.setdefault(id, set()).add(actor)
            self._send(actor, message_frames.STORED_VALUE, id, stored.keep)

    def _send(self, actor: ProcessActor, kind: int, id: int, packed: message_frames.PackedPayload) -> None:
        if packed.block is not None:
            packed.block.expect_release(actor.releases)
        if packed.handle_ids:
            self.handles.count_sent(actor, packed.handle_ids)
        actor.connection.send(packed.frame(kind, id))

    # Frames from a worker.

    def _handle_frame(self, actor: ProcessActor, frame: message_frames.Frame) -> None:
        kind, id, extra, payload = frame
        if kind == message_frames.RESULT or kind == message_frames.CALL_FAILED:
            actor.last_micros = extra
            self.finished(actor, id, payload, kind == message_frames.CALL_FAILED)
        elif kind == message_frames.READY:
            actor.ready.set_result(True)
        elif kind == message_frames.START_FAILED:
            cause = decode_error(payload)
            error = ActorStartError(f"{actor.name} could not start: {type(cause).__name__}: {cause}", actor.name)
            error.__cause__ = cause
            self._declare_dead(actor, error)
        elif kind == message_frames.RELEASE_HANDLES:
            numbers = iter(struct.unpack(f"<{len(payload.body) // 8}Q", payload.body))
            for handle_id, arrivals in zip(numbers, numbers, strict=True):
                self.handles.count_released(actor, handle_id, arrivals)
        elif kind == message_frames.RETURN_CALLS:
            ids = struct.unpack(f"<{len(payload.body) // 8}Q", payload.body)
            calls = [actor.calls.pop(id) for id in ids if id in actor.calls]
            if actor.on_calls_returned is not None:
                actor.on_calls_returned(actor, calls)
        elif kind == message_frames.REQUEST:
            self._handle_request(actor, id, payload)
        elif kind == message_frames.PUT:
            self._reply_with(actor, actor.incarnation, id, lambda: self.store(payload))

    def _handle_request(self, actor: ProcessActor, id: int, payload: Payload) -> None:
        incarnation = actor.incarnation
        try:
            request = self.decode(payload)
        except Exception as error:
            self._reply(actor, incarnation, id, encode_error(error, actor.name, "request"), True)
            return
        if request[0] == "fetch":
            self._reply_with(actor, incarnation, id, lambda: self._send_stored(actor, request[1]))
        else:
            self.answer(actor, request, lambda reply, failed: self._reply(actor, incarnation, id, reply, failed))

    def _reply_with(self, actor: ProcessActor, incarnation: int, id: int, work: Callable[[], Any]) -> None:
        """Reply to a request with what `work` returns or raises."""
        try:
            reply, failed = _codec.encode(work()), False
        except Exception as error:
            reply, failed = encode_error(error, actor.name, "request"), True
        self._reply(actor, incarnation, id, reply, failed)

    def _reply(self, actor: ProcessActor, incarnation: int, id: int, reply: Payload, failed: bool) -> None:
        """Send a reply, unless the actor that made the request has died since."""
        if actor.error is None and actor.incarnation == incarnation:
            kind = message_frames.REPLY_ERROR if failed else message_frames.REPLY
            try:
                packed = message_frames.PackedPayload(reply, self._arena)
            except SharedMemoryError as error:  # which is small enough for any frame
                kind = message_frames.REPLY_ERROR
                packed = message_frames.PackedPayload(encode_error(error, actor.name, "request"), self._arena)
            self._send(actor, kind, id, packed)

    def _reply_arrived(self, actor: CoreActor, id: int) -> bool:
        assert isinstance(actor, ProcessActor)
        actor.connection.receive_all()
        return id not in actor.calls

    # Stored values.

    def _to_stored(self, payload: Payload) -> Payload:
        """Write the value into the driver's arena once, where the driver itself reads it too."""
        packed = message_frames.PackedPayload(payload, self._arena)
        stored = Payload(bytes(payload.body), [], payload.handles, packed)  # a large body may be in a worker's arena
        if packed.block is not None:
            lengths = [memoryview(buffer).nbytes for buffer in payload.buffers]
            stored.buffers = self._arena.read(packed.block, lengths)
        return stored

    def _discard(self, id: int) -> None:
        super()._discard(id)
        holders = self._value_holders.pop(id, ())
        for actor in holders:
            actor.held_values.discard(id)
        for actor in holders:
            actor.connection.send(message_frames.bare_frame(message_frames.DROP_VALUE, id))

    # Closing.

    def _close(self) -> None:
        self._processes.close()
        self._arena.close()
        self._control.close()
        _open_engines.discard(self)

    def after_fork_in_child(self) -> None:
        """Detach a forked copy of the driver: workers must not live on because it holds their pipes open."""
        self.closed = True  # so that `close` in the child leaves the parent's engine alone
        self._processes.close_in_forked_child()


def _raise_open_files_limit() -> None:
    """Raise the limit of open files as far as allowed: a worker takes five, and a usual limit is 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        limit = 1 << 16 if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


_open_engines: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


def _close_at_exit() -> None:
    for engine in list(_open_engines):
        engine.close()


def _detach_in_forked_child() -> None:
    for engine in list(_open_engines):
        engine.after_fork_in_child()
    _open_engines.clear()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_detach_in_forked_child)
