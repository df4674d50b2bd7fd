"""The process engine: actors in worker processes on this machine.

Small frames go over one socket pair a worker; arrays go through shared memory and are not copied on the reading side.
The parts: `_launcher` starts workers, `_worker` is what runs in them, `_wire` the frames, `_arena` the shared memory,
`_reactor` the loop that waits.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from raceway.engine import _codec, _wire
from raceway.engine._arena import NUM_ROWS, Arena, ArenaView, Control, anonymous_file
from raceway.engine._codec import Payload
from raceway.engine._core import CoreActor, EngineCore, describe_error, revive_error
from raceway.engine._handles import Handle
from raceway.engine._reactor import Reactor
from raceway.engine._worker import thread_environment
from raceway.engine.base import Message, Ref, Resources
from raceway.errors import ActorDied, ActorStartError, ConfigError, ObjectFreed, RacewayError, ResourceError

_output = logging.getLogger("raceway.worker")
_SOCKET_BYTES = 1 << 20
_MOST_WORKERS = NUM_ROWS // 2 - 1
_TAIL_LINES = 30  # of a worker's output, kept to explain its death
_GRACE_SECONDS = 2.0  # for idle workers to leave by themselves on close


class ProcessActor(CoreActor):
    """An actor in a worker process, and the driver's end of everything it shares with it."""

    place = -1
    """Which rows of the control file are its own; -1 while it has no process."""
    socket: socket.socket
    inbox: _wire.Inbox
    view: ArenaView
    """The worker's arena."""
    releases: np.ndarray[Any, Any]
    """The row in which the worker releases slots of the driver's arena."""
    output: Output
    pidfd: int | None = None

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.outbox: deque[memoryview] = deque()
        self.known: set[int] = set()
        """Stored values that the worker has."""


class Output:
    """What one worker prints: forwarded line by line under its name, the last lines kept to explain its death."""

    def __init__(self, reactor: Reactor, name: str) -> None:
        self.fd, self.theirs = os.pipe()
        os.set_blocking(self.fd, False)
        self._reactor = reactor
        self._name = name
        self._partial = b""
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        reactor.watch(self.fd, lambda mask: self.drain())

    def drain(self) -> None:
        """Take in all that is there; at the end, close."""
        while self.fd >= 0:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            *lines, self._partial = (self._partial + data).split(b"\n")
            if not data:
                lines = [self._partial] if self._partial else []
                self.close()
            for line in lines:
                self._forward(line.decode(errors="backslashreplace"))

    def close(self) -> None:
        if self.fd >= 0:
            self._reactor.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1

    def tail(self) -> str:
        """Return the last lines, to be put behind an error message."""
        return "".join(["\nIts last output:", *(f"\n  {line}" for line in self._last)]) if self._last else ""

    def _forward(self, line: str) -> None:
        self._last.append(line)
        if _output.hasHandlers():
            _output.info("[%s] %s", self._name, line)
        else:  # logging is not set up: a print in a worker should still be seen, and stdout is the user's
            print(f"[{self._name}] {line}", file=sys.stderr)


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
        super().__init__(
            Reactor(clock),
            capacity=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        )
        self._budget = budget
        self._preload = list(preload)
        self._portable = portable
        self._control = Control()
        self._arena = Arena(self._control, 0, budget)
        self._places = deque(range(_MOST_WORKERS))
        self._workers: dict[int, ProcessActor] = {}
        self._outputs: set[Output] = set()
        self._holders: dict[int, set[ProcessActor]] = {}  # workers that have a stored value
        self._leaving: set[int] = set()  # places of workers that were told to end and have not yet
        self._life_out, self._life_in = os.pipe()
        self._launcher: subprocess.Popen[bytes]
        self._start_launcher()
        _engines.add(self)

    # The launcher.

    def _start_launcher(self) -> None:
        kind = socket.SOCK_DGRAM if self._portable else socket.SOCK_SEQPACKET
        self._line, theirs = socket.socketpair(socket.AF_UNIX, kind)
        for end in (self._line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        boot = (
            f"import sys; sys.path.insert(0, {here!r}); from raceway.engine import _launcher; "
            f"_launcher.main({theirs.fileno()}, {self._life_out}, {self._preload!r})"
        )
        self._launcher = subprocess.Popen(
            [sys.executable, "-c", boot],
            pass_fds=[theirs.fileno(), self._life_out],
            stdin=subprocess.DEVNULL,
            env=os.environ | thread_environment(1),
            start_new_session=True,  # Ctrl-C on the terminal is for the driver alone
        )
        theirs.close()
        self._line.setblocking(False)
        self.reactor.watch(self._line.fileno(), self._heard)

    def _heard(self, mask: int) -> None:
        """Take in what the launcher says."""
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self._line, 4096, 1)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self._launcher_gone()
                return
            what, place, number = pickle.loads(data)
            actor = self._workers.get(place)
            if what == "ended":
                self._leaving.discard(place)
                if actor is None:
                    self._places.append(place)
                else:
                    self._ended(actor, number)
            elif actor is not None and actor.pid is None:
                actor.pid, actor.pidfd = number, fds.pop() if fds else None
            elif actor is None and fds:  # told to end before it had begun
                _kill(fds[0])
            for fd in fds:
                os.close(fd)

    def _launcher_gone(self) -> None:
        self.reactor.unwatch(self._line.fileno())
        self._line.close()
        self._launcher.wait()
        for actor in list(self._workers.values()):
            self._lost(actor, ActorDied(f"{actor.name} died with the launcher of its engine", actor.name))
        self._places.extend(self._leaving)  # it was their parent: they are gone too
        self._leaving.clear()
        if not self.closed:
            self._start_launcher()

    # Starting and ending a worker.

    def _check_resources(self, needs: Resources) -> None:
        if needs.custom:
            raise ResourceError(
                f"the process engine knows cpus and gpus, not {sorted(needs.custom)}. Custom resources need Ray."
            )
        if needs.gpus > len(_gpus()):
            raise ResourceError(f"{needs.gpus:g} gpus were asked for, and this machine has {len(_gpus())}")

    def _new_actor(self, *parts: Any) -> ProcessActor:
        return ProcessActor(self, *parts)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, ProcessActor)
        if not self._places:
            raise ResourceError(f"an engine has room for {_MOST_WORKERS} workers at once")
        place = actor.place = self._places.popleft()
        self._workers[place] = actor
        actor.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        for end in (actor.socket, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        actor.socket.setblocking(False)
        actor.releases = self._control.row(2 * place)
        actor.view = ArenaView(anonymous_file(0), self._control.row(2 * place + 1))
        actor.inbox = _wire.Inbox(actor.view, self._claim)
        actor.outbox.clear()
        actor.output = Output(self.reactor, actor.name)
        self._outputs = {output for output in self._outputs if output.fd >= 0} | {actor.output}
        self._tell(
            {
                "do": "start",
                "worker": place,
                "uid": self.uid,
                "name": actor.name,
                "budget": self._budget,
                "threads": actor.threads,
                "fresh": actor.threads != 1 or self._portable,
                "hands_back": actor.hands_back,
                "environ": dict(os.environ) | _gpu_environment(actor.resources.gpus, place),
                "cwd": os.getcwd(),
                "path": [os.path.abspath(entry) for entry in sys.path],
                "argv": sys.argv,
            },
            [theirs.fileno(), actor.output.theirs, self._arena.fd, actor.view.fd, self._control.fd],
        )
        theirs.close()
        os.close(actor.output.theirs)
        self.reactor.watch(actor.socket.fileno(), lambda mask: self._ready_for(actor, mask))
        self._send_parcel(actor, _wire.MAKE, 0, _wire.Parcel(actor.factory, self._arena))
        life = actor.incarnation
        self.reactor.at(self.clock() + actor.start_timeout, lambda: self._late(actor, life))

    def _tell(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send the launcher a request. It always reads, so waiting for room cannot last."""
        data = pickle.dumps(request)
        while True:
            try:
                if fds:
                    socket.send_fds(self._line, [data], list(fds))
                else:
                    self._line.send(data)
                return
            except BlockingIOError:
                select.select([], [self._line], [], 1.0)
            except OSError:
                return  # it is gone; `_heard` will say so

    def _late(self, actor: ProcessActor, incarnation: int) -> None:
        if actor.incarnation == incarnation and not actor.ready.done():
            text = f"{actor.name} was not ready after {actor.start_timeout:g} s (start_timeout)"
            self._lost(actor, ActorStartError(text + actor.output.tail(), actor.name))

    def _ended(self, actor: ProcessActor, code: int) -> None:
        """Take in what a worker that has ended by itself still said, then declare it dead."""
        while self._receive(actor) > 0:
            pass
        actor.output.drain()
        place = actor.place
        if actor.error is None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            kind, when = (ActorDied, "") if actor.ready.done() else (ActorStartError, " before it was ready")
            self._lost(actor, kind(f"{actor.name} (pid {actor.pid}) {how}{when}{actor.output.tail()}", actor.name))
        self._leaving.discard(place)
        self._places.append(place)

    def _end(self, actor: CoreActor) -> None:
        """Let go of a worker; kill its process, unless it is idle and the engine closes: then it leaves by itself."""
        assert isinstance(actor, ProcessActor)
        if self._workers.get(actor.place) is not actor:
            return  # it waits to be restarted and has no process
        del self._workers[actor.place]
        self._leaving.add(actor.place)
        if not (self.closed and actor.ready.done() and not actor.calls):
            self._kill_process(actor)
        self.reactor.unwatch(actor.socket.fileno())
        actor.socket.close()
        actor.view.close()
        self._control.used[1 + actor.place] = 0
        self._arena.forget_reader(actor.releases)
        actor.releases = np.empty(0, np.uint16)  # a row kept here would keep the control file open
        for id in actor.known:
            self._holders[id].discard(actor)
        actor.known.clear()
        if actor.pidfd is not None:
            os.close(actor.pidfd)
        actor.pidfd = actor.pid = None

    def _kill_process(self, actor: ProcessActor) -> None:
        if actor.pidfd is not None:
            _kill(actor.pidfd)
        else:
            self._tell({"do": "kill", "worker": actor.place})

    # Frames out.

    def _seal(self, message: Message) -> None:
        with self.lock:
            message.wire = _wire.Parcel(message.payload, self._arena)
        message.payload = _wire.EMPTY

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, ProcessActor)
        for ref in message.refs:
            self._supply(actor, ref.id)
        self._send_parcel(actor, _wire.CALL, id, message.wire)

    def _supply(self, actor: ProcessActor, id: int) -> None:
        """Make sure that the worker has a stored value."""
        if id not in actor.known:
            stored = self._stored.get(id)
            if stored is None:
                raise ObjectFreed(f"reference {id} is not stored here any more")
            actor.known.add(id)
            self._holders.setdefault(id, set()).add(actor)
            self._send_parcel(actor, _wire.OBJECT, id, stored.keep)

    def supply(self, actor: CoreActor, refs: Sequence[Ref]) -> None:
        """Send an actor stored values that it is about to read."""
        assert isinstance(actor, ProcessActor)
        for ref in refs:
            self._supply(actor, ref.id)

    def _send_parcel(self, actor: ProcessActor, kind: int, id: int, parcel: _wire.Parcel) -> None:
        if parcel.slot is not None:
            parcel.slot.sent_to(actor.releases)
        if parcel.handle_ids:
            self._handles.sent(actor, parcel.handle_ids)
        self._send(actor, parcel.frame(kind, id))

    def _send(self, actor: ProcessActor, frame: bytes) -> None:
        if actor.outbox:
            actor.outbox.append(memoryview(frame))
            return
        try:
            sent = actor.socket.send(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # it is dying; the launcher will say how
        if sent < len(frame):
            actor.outbox.append(memoryview(frame)[sent:])
            self.reactor.watch_writable(actor.socket.fileno(), True)

    def _ready_for(self, actor: ProcessActor, mask: int) -> None:
        if mask & select.POLLOUT:
            self._send_more(actor)
        if mask & ~select.POLLOUT and actor.error is None and self._receive(actor) == 0 and actor.error is None:
            # It has hung up without ending, as the launcher would have told: see that it does.
            self.reactor.unwatch(actor.socket.fileno())
            self._kill_process(actor)

    def _send_more(self, actor: ProcessActor) -> None:
        outbox = actor.outbox
        while outbox:
            try:
                sent = actor.socket.sendmsg(list(itertools.islice(outbox, 64)))
            except BlockingIOError:
                return
            except OSError:
                outbox.clear()
                break
            while sent:
                first = outbox.popleft()
                if sent < len(first):
                    outbox.appendleft(first[sent:])
                sent -= min(sent, len(first))
        self.reactor.watch_writable(actor.socket.fileno(), False)

    # Frames in.

    def _claim(self, ids: tuple[int, ...]) -> list[Handle]:
        return [Handle(self._handles, id) for id in ids]

    def _receive(self, actor: ProcessActor) -> int:
        """Read and handle what has come from a worker. Return the number of bytes; 0 is the end, -1 nothing now."""
        if self._workers.get(actor.place) is not actor:
            return 0
        try:
            data = actor.socket.recv(1 << 16)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        for kind, id, extra, payload in actor.inbox.feed(data):
            if kind == _wire.RESULT:
                actor.last_micros = extra
                self.finished(actor, id, payload, False)
            else:
                self._take(actor, kind, id, extra, payload)
            if actor.error is not None:
                return 0
        return len(data)

    def _take(self, actor: ProcessActor, kind: int, id: int, extra: int, payload: Payload) -> None:
        if kind == _wire.FAILURE:
            actor.last_micros = extra
            self.finished(actor, id, payload, True)
        elif kind == _wire.READY:
            actor.ready.fulfil(True)
        elif kind == _wire.UNREADY:
            cause = revive_error(payload)
            error = ActorStartError(f"{actor.name} could not start: {type(cause).__name__}: {cause}", actor.name)
            error.__cause__ = cause
            self._lost(actor, error)
        elif kind == _wire.RELEASE:
            numbers = iter(struct.unpack(f"<{len(payload.body) // 8}Q", payload.body))
            for handle, arrivals in zip(numbers, numbers, strict=True):
                self._handles.released(actor, handle, arrivals)
        elif kind == _wire.GIVEN_BACK:
            ids = struct.unpack(f"<{len(payload.body) // 8}Q", payload.body)
            calls = [actor.calls.pop(id) for id in ids if id in actor.calls]
            if actor.on_lost is not None:
                actor.on_lost(actor, calls)
        elif kind == _wire.REQUEST:
            self._requested(actor, id, payload)
        elif kind == _wire.PUT:
            self._answer(actor, actor.incarnation, id, lambda: self.store(payload))

    def _requested(self, actor: ProcessActor, id: int, payload: Payload) -> None:
        life = actor.incarnation
        request = self.decode(payload)
        if request[0] == "fetch":
            self._answer(actor, life, id, lambda: self._supply(actor, request[1]))
        else:
            self.answer(actor, request, lambda answer, failed: self._reply(actor, life, id, answer, failed))

    def _answer(self, actor: ProcessActor, life: int, id: int, work: Callable[[], Any]) -> None:
        """Answer a request with what `work` returns or raises."""
        try:
            answer, failed = _codec.encode(work()), False
        except RacewayError as error:
            answer, failed = describe_error(error, actor.name, "request"), True
        self._reply(actor, life, id, answer, failed)

    def _reply(self, actor: ProcessActor, life: int, id: int, answer: Payload, failed: bool) -> None:
        if actor.error is None and actor.incarnation == life:
            kind = _wire.REFUSAL if failed else _wire.ANSWER
            self._send_parcel(actor, kind, id, _wire.Parcel(answer, self._arena))

    def _drained(self, actor: CoreActor, id: int) -> bool:
        assert isinstance(actor, ProcessActor)
        while self._receive(actor) > 0:
            pass
        return id not in actor.calls

    # Stored values.

    def _kept(self, payload: Payload) -> Payload:
        """Write the value into the driver's arena once; the driver itself reads it there too."""
        parcel = _wire.Parcel(payload, self._arena)
        kept = Payload(payload.body, [], payload.handles, parcel)
        if parcel.slot is not None:
            lengths = [memoryview(buffer).nbytes for buffer in payload.buffers]
            kept.buffers = self._arena.read(parcel.slot, lengths)
        return kept

    def _discard(self, id: int) -> None:
        super()._discard(id)
        for actor in self._holders.pop(id, ()):
            actor.known.discard(id)
            self._send(actor, _wire.bare_frame(_wire.DROP, id))

    # The end.

    def _close(self) -> None:
        self.reactor.wait(lambda: not self._leaving, timeout=_GRACE_SECONDS)
        with self.lock:
            self._tell({"do": "exit"})  # whoever is left dies with it
        self._launcher.wait()
        with self.lock:
            if self._line.fileno() >= 0:
                self.reactor.unwatch(self._line.fileno())
                self._line.close()
            for output in self._outputs:
                output.drain()
                output.close()
        os.close(self._life_in)
        os.close(self._life_out)
        self._arena.close()
        self._control.close()
        _engines.discard(self)

    def after_fork_in_child(self) -> None:
        """Let go: a forked copy of the driver must not keep the workers alive by holding their pipes open."""
        for fd in (self._life_in, self._line.fileno(), *(actor.socket.fileno() for actor in self._workers.values())):
            with contextlib.suppress(OSError):
                os.close(fd)


def _kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def _gpus() -> list[str]:
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return [gpu for gpu in given.split(",") if gpu.strip() not in ("", "-1")]
    with contextlib.suppress(OSError):
        return [str(number) for number in range(len(os.listdir("/proc/driver/nvidia/gpus")))]
    return []


def _gpu_environment(count: float, place: int) -> dict[str, str]:
    """Give a worker its gpus, turn by turn; workers that ask for fractions share."""
    gpus = _gpus()
    if not count or not gpus:
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[(place + i) % len(gpus)] for i in range(max(1, round(count))))}


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
