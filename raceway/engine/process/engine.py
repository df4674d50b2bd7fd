"""The process engine: actors in worker processes on this machine.

Small frames go over one socket pair a worker; arrays go through shared memory and are not copied on the reading side.
The parts: `_starter` and `_launcher` start workers, `_worker` is what runs in them, `_link` and `_wire` carry the
frames, `_arena` is the shared memory, `_reactor` the loop that waits.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import signal
import struct
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raceway.engine import _codec
from raceway.engine._calls import describe_error, revive_error
from raceway.engine._codec import Payload
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine._handles import Handle
from raceway.engine._reactor import Reactor
from raceway.engine._shared_memory import NUM_ROWS, Arena, ArenaView, Control, anonymous_file
from raceway.engine.base import Message, Ref, Resources
from raceway.engine.process import frames
from raceway.engine.process.launcher_client import Starter, gpu_environment, gpus
from raceway.engine.process.link import Corked, Frame, Link
from raceway.engine.process.output import Output
from raceway.errors import (
    ActorDied,
    ActorStartError,
    ConfigError,
    ObjectFreed,
    ResourceError,
    SharedMemoryError,
)

_MOST_WORKERS = NUM_ROWS // 2 - 1
_GRACE_SECONDS = 2.0  # for idle workers to leave by themselves on close


class ProcessActor(CoreActor):
    """An actor in a worker process, and the driver's end of everything it shares with it."""

    place = -1
    """Which rows of the control file are its own; -1 while it has no process."""
    link: Link
    view: ArenaView
    """The worker's arena."""
    releases: np.ndarray[Any, Any]
    """The row in which the worker releases slots of the driver's arena."""
    output: Output
    pidfd: int | None = None

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.known: set[int] = set()
        """Stored values that the worker has."""


class ProcessEngine(EngineCore):
    """Actors in processes of this machine.

    Args:
        shared_memory: bytes of shared memory that messages and stored values may take together; half of the machine's
            memory by default. It is taken as needed, not at once.
        preload: modules that the launcher imports once, so that workers have them at once (``["torch"]``).
        clock: the source of time for deadlines and back-off.
        portable: use only what every POSIX system has. For trying on Linux what runs on macOS.
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
        _allow_many_files()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        super().__init__(Reactor(clock), cores)
        self._budget = budget
        self._preload = list(preload)
        self._portable = portable
        self._control = Control()
        self._arena = Arena(self._control, 0, budget)
        self._places = deque(range(_MOST_WORKERS))
        self._workers: dict[int, ProcessActor] = {}
        self._leaving: set[int] = set()  # places of workers that were told to end and have not yet
        self._outputs: set[Output] = set()
        self._corked = Corked()
        self._holders: dict[int, set[ProcessActor]] = {}  # workers that have a stored value
        self._life, self._life_held = os.pipe()
        self._start_launcher()
        self.reactor.crowded = self._crowded
        _engines.add(self)

    def _crowded(self) -> bool:
        """Whether there is a busy worker for every core."""
        free = self.capacity
        for actor in self._workers.values():
            if actor.calls:
                free -= 1
                if free <= 0:
                    return True
        return False

    # The launcher and what it tells.

    def _start_launcher(self) -> None:
        self._starter = Starter(
            self.reactor,
            self._life,
            self._preload,
            self._portable,
            started=self._started,
            ended=self._ended,
            gone=self._launcher_gone,
        )

    def _started(self, place: int, pid: int, pidfd: int | None) -> None:
        actor = self._workers.get(place)
        if actor is not None and actor.pid is None:
            actor.pid, actor.pidfd = pid, pidfd
        elif pidfd is not None:  # it was told to end before it had begun
            _kill(pidfd)
            os.close(pidfd)

    def _ended(self, place: int, code: int) -> None:
        """Take in what a worker that has ended still said, then declare it dead."""
        actor = self._workers.get(place)
        if actor is not None:
            actor.link.receive_all()
            actor.output.drain()
        if actor is not None and actor.error is None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            kind, when = (ActorDied, "") if actor.ready.done() else (ActorStartError, " before it was ready")
            self._lost(actor, kind(f"{actor.name} (pid {actor.pid}) {how}{when}{actor.output.tail()}", actor.name))
        self._leaving.discard(place)
        self._places.append(place)
        self.reactor.changed()

    def _launcher_gone(self) -> None:
        orphans = list(self._workers.values())
        places = self._leaving | {actor.place for actor in orphans}
        if not self.closed:
            self._start_launcher()  # before the losses are told of: whoever hears may want a new worker at once
        for actor in orphans:
            if actor.pidfd is None and actor.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(actor.pid, signal.SIGKILL)  # where they do not die with their parent by themselves
            self._lost(actor, ActorDied(f"{actor.name} died with the launcher of its engine", actor.name))
        self._leaving -= places
        self._places.extend(places)
        self.reactor.changed()

    # Starting and ending a worker.

    def _check_resources(self, needs: Resources) -> None:
        if needs.custom:
            raise ResourceError(
                f"the process engine knows cpus and gpus, not {sorted(needs.custom)}. Custom resources need Ray."
            )
        if needs.gpus > len(gpus()):
            raise ResourceError(f"{needs.gpus:g} gpus were asked for, and this machine has {len(gpus())}")

    def _new_actor(self, *parts: Any) -> ProcessActor:
        return ProcessActor(self, *parts)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, ProcessActor)
        if not self._places:
            raise ResourceError(f"an engine has room for {_MOST_WORKERS} workers at once")
        # What can fail comes before anything is opened.
        surroundings = {"cwd": os.getcwd(), "path": [os.path.abspath(entry) for entry in sys.path], "argv": sys.argv}
        factory = frames.Parcel(actor.factory, self._arena)
        place = self._places.popleft()
        try:
            self._open_channels(actor, place)
        except OSError as error:
            self._places.appendleft(place)
            raise ResourceError(f"{actor.name} cannot be started: {error}. A worker takes five open files.") from error
        actor.place = place
        self._workers[place] = actor
        self._start_process(actor, place, surroundings)
        self._send(actor, frames.MAKE, 0, factory)
        life = actor.incarnation
        self.reactor.at(self.clock() + actor.start_timeout, lambda: self._late(actor, life))

    def _open_channels(self, actor: ProcessActor, place: int) -> None:
        """Make everything that the driver shares with a worker, or nothing."""
        actor.releases = self._control.row(2 * place)
        with contextlib.ExitStack() as undo:
            actor.view = ArenaView(anonymous_file(0, self._portable), self._control.row(2 * place + 1))
            undo.callback(actor.view.close)
            actor.output = Output(self.reactor, actor.name)
            undo.callback(actor.output.close)
            undo.callback(os.close, actor.output.theirs)
            actor.link = Link(
                self.reactor,
                frames.Inbox(actor.view, self._claim),
                self._corked,
                lambda frame: self._take(actor, frame),
                lambda: self._kill_process(actor),  # the launcher would have told of its end: see that it comes
            )
            undo.pop_all()

    def _start_process(self, actor: ProcessActor, place: int, surroundings: dict[str, Any]) -> None:
        self._outputs = {output for output in self._outputs if output.fd >= 0} | {actor.output}
        spec = {
            "do": "start",
            "worker": place,
            "uid": self.uid,
            "name": actor.name,
            "budget": self._budget,
            "threads": actor.threads,
            "fresh": actor.threads != 1 or self._portable,
            "portable": self._portable,
            "hands_back": actor.hands_back,
            "environ": dict(os.environ) | gpu_environment(actor.resources.gpus, place),
            **surroundings,
        }
        theirs = actor.link.theirs
        fds = [theirs.fileno(), actor.output.theirs, self._arena.fd, actor.view.fd, self._control.fd]
        self._starter.tell(spec, fds)
        theirs.close()
        os.close(actor.output.theirs)

    def _late(self, actor: ProcessActor, incarnation: int) -> None:
        if actor.incarnation == incarnation and not actor.ready.done():
            text = f"{actor.name} was not ready after {actor.start_timeout:g} s (start_timeout)"
            self._lost(actor, ActorStartError(text + actor.output.tail(), actor.name))

    def _end(self, actor: CoreActor) -> None:
        """Let go of a worker; kill its process, unless it is idle and the engine closes: then it leaves by itself."""
        assert isinstance(actor, ProcessActor)
        place = actor.place
        if self._workers.get(place) is not actor:
            return  # it could not be started
        del self._workers[place]
        self._leaving.add(place)
        if not (self.closed and actor.ready.done() and not actor.calls):
            self._kill_process(actor)
        actor.link.close()
        actor.view.close()
        self._control.used[1 + place] = 0
        self._arena.forget_reader(actor.releases)
        actor.releases = np.empty(0, np.uint16)  # a row kept here would keep the control file open
        for id in actor.known:
            self._holders.get(id, set()).discard(actor)  # Ctrl-C may have come between the two
        actor.known.clear()
        if actor.pidfd is not None:
            os.close(actor.pidfd)
        actor.pidfd = actor.pid = None
        actor.place = -1

    def _kill_process(self, actor: ProcessActor) -> None:
        if actor.pidfd is not None:
            _kill(actor.pidfd)
        else:
            self._starter.tell({"do": "kill", "worker": actor.place})

    # Frames to a worker.

    def _seal(self, message: Message) -> None:
        with self.lock:
            self._handles.sweep()
            message.wire = frames.Parcel(message.payload, self._arena)
        message.payload = frames.EMPTY

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, ProcessActor)
        for ref in message.refs:
            self._supply(actor, ref.id)
        self._send(actor, frames.CALL, id, message.wire)

    def supply(self, actor: CoreActor, refs: Sequence[Ref]) -> None:
        """Send an actor stored values that it is about to read."""
        assert isinstance(actor, ProcessActor)
        for ref in refs:
            self._supply(actor, ref.id)

    def _supply(self, actor: ProcessActor, id: int) -> None:
        """Make sure that the worker has a stored value."""
        if id not in actor.known:
            stored = self._stored.get(id)
            if stored is None:
                raise ObjectFreed(f"reference {id} is not stored here any more")
            actor.known.add(id)
            self._holders.setdefault(id, set()).add(actor)
            self._send(actor, frames.OBJECT, id, stored.keep)

    def _send(self, actor: ProcessActor, kind: int, id: int, parcel: frames.Parcel) -> None:
        if parcel.slot is not None:
            parcel.slot.sent_to(actor.releases)
        if parcel.handle_ids:
            self._handles.sent(actor, parcel.handle_ids)
        actor.link.send(parcel.frame(kind, id))

    # Frames from a worker.

    def _claim(self, ids: tuple[int, ...]) -> list[Handle]:
        return [Handle(self._handles, id) for id in ids]

    def _take(self, actor: ProcessActor, frame: Frame) -> None:
        kind, id, extra, payload = frame
        if kind == frames.RESULT or kind == frames.FAILURE:
            actor.last_micros = extra
            self.finished(actor, id, payload, kind == frames.FAILURE)
        elif kind == frames.READY:
            actor.ready.fulfil(True)
        elif kind == frames.UNREADY:
            cause = revive_error(payload)
            error = ActorStartError(f"{actor.name} could not start: {type(cause).__name__}: {cause}", actor.name)
            error.__cause__ = cause
            self._lost(actor, error)
        elif kind == frames.RELEASE:
            numbers = iter(struct.unpack(f"<{len(payload.body) // 8}Q", payload.body))
            for handle, arrivals in zip(numbers, numbers, strict=True):
                self._handles.released(actor, handle, arrivals)
        elif kind == frames.GIVEN_BACK:
            ids = struct.unpack(f"<{len(payload.body) // 8}Q", payload.body)
            calls = [actor.calls.pop(id) for id in ids if id in actor.calls]
            if actor.on_lost is not None:
                actor.on_lost(actor, calls)
        elif kind == frames.REQUEST:
            self._requested(actor, id, payload)
        elif kind == frames.PUT:
            self._answer(actor, actor.incarnation, id, lambda: self.store(payload))

    def _requested(self, actor: ProcessActor, id: int, payload: Payload) -> None:
        life = actor.incarnation
        try:
            request = self.decode(payload)
        except Exception as error:
            self._reply(actor, life, id, describe_error(error, actor.name, "request"), True)
            return
        if request[0] == "fetch":
            self._answer(actor, life, id, lambda: self._supply(actor, request[1]))
        else:
            self.answer(actor, request, lambda answer, failed: self._reply(actor, life, id, answer, failed))

    def _answer(self, actor: ProcessActor, life: int, id: int, work: Callable[[], Any]) -> None:
        """Answer a request with what `work` returns or raises."""
        try:
            answer, failed = _codec.encode(work()), False
        except Exception as error:
            answer, failed = describe_error(error, actor.name, "request"), True
        self._reply(actor, life, id, answer, failed)

    def _reply(self, actor: ProcessActor, life: int, id: int, answer: Payload, failed: bool) -> None:
        if actor.error is None and actor.incarnation == life:
            kind = frames.REFUSAL if failed else frames.ANSWER
            try:
                parcel = frames.Parcel(answer, self._arena)
            except SharedMemoryError as error:  # its text always fits
                kind = frames.REFUSAL
                parcel = frames.Parcel(describe_error(error, actor.name, "request"), self._arena)
            self._send(actor, kind, id, parcel)

    def _drained(self, actor: CoreActor, id: int) -> bool:
        assert isinstance(actor, ProcessActor)
        actor.link.receive_all()
        return id not in actor.calls

    # Stored values.

    def _kept(self, payload: Payload) -> Payload:
        """Write the value into the driver's arena once; the driver itself reads it there too."""
        parcel = frames.Parcel(payload, self._arena)
        kept = Payload(bytes(payload.body), [], payload.handles, parcel)  # a large body may lie in a worker's arena
        if parcel.slot is not None:
            lengths = [memoryview(buffer).nbytes for buffer in payload.buffers]
            kept.buffers = self._arena.read(parcel.slot, lengths)
        return kept

    def _discard(self, id: int) -> None:
        super()._discard(id)
        holders = self._holders.pop(id, ())
        for actor in holders:
            actor.known.discard(id)
        for actor in holders:
            actor.link.send(frames.bare_frame(frames.DROP, id))

    # The end.

    def _close(self) -> None:
        self.reactor.wait(lambda: not self._leaving, timeout=_GRACE_SECONDS)
        with self.lock:
            self._starter.close()  # whoever is left dies with it
            for output in self._outputs:
                output.drain()
                output.close()
        os.close(self._life)
        os.close(self._life_held)
        self._arena.close()
        self._control.close()
        _engines.discard(self)

    def after_fork_in_child(self) -> None:
        """Let go: a forked copy of the driver must not keep the workers alive by holding their pipes open."""
        self.closed = True  # here, so that `close` leaves the parent's engine alone
        links = [actor.link.fileno() for actor in self._workers.values()]
        for fd in (self._life_held, self._starter.fileno(), *links):
            with contextlib.suppress(OSError):
                os.close(fd)


def _allow_many_files() -> None:
    """Raise the limit of open files as far as it goes: a worker takes five, and 1,024 is a usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        most = 1 << 16 if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


_engines: weakref.WeakSet[ProcessEngine] = weakref.WeakSet()


def _close_all() -> None:
    for engine in list(_engines):
        engine.close()


def _let_go_in_child() -> None:
    for engine in list(_engines):
        engine.after_fork_in_child()
    _engines.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_let_go_in_child)
