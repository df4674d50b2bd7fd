"""The ray engine: actors on a Ray cluster, or on a Ray that it starts on this machine.

A value travels as one wire: a small header with the encoded body (`bytes`, which Ray moves without pickling them), and
where there are large arrays a list of that and their memory, which Ray keeps in its object store and reads without a
copy. To and from actors on the driver's own machine, arrays of results and stored values go through memory that it
shares with them (`_nearby`). `Host` is what runs in an actor. What Ray tells on threads of its own is only put into an
inbox there and handled in the reactor's loop: a thread of Ray's that waited for the engine's lock, held by one that
waits for Ray, would never wake. But to be told of every result costs a fifth of a small call: who waits for nothing but
calls asks Ray for them himself, and only calls that nobody has come to wait for are told of.

Requests of actors go through a mailbox, an asynchronous Ray actor, because Ray lets an actor call actors but not the
driver. The mailbox also watches over the actors: it has one call out to each that can never begin, and that fails at
the moment the actor dies. A method that blocks would do as well, but then Ray would run the calls off the main thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.abc
import importlib.util
import inspect
import itertools
import logging
import math
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from raceway.engine import _codec, driver_client
from raceway.engine._calls import Home, describe_error, name_of, owned, revive_error, run_call
from raceway.engine._codec import Payload
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine._handles import AwayTable, Handle
from raceway.engine._reactor import Reactor
from raceway.engine.base import Among, Future, Message, Ref, Resources
from raceway.engine.malloc import keep_freed_memory
from raceway.engine.process.worker import thread_environment
from raceway.engine.ray.modules import collect_sources
from raceway.engine.ray.node_memory import Lane, Lent, Nearby, Neighbour, Offer, neighbour_of
from raceway.errors import (
    ActorDied,
    ActorStartError,
    ConfigError,
    EngineClosed,
    ObjectFreed,
    RacewayError,
    ResourceError,
    SharedMemoryError,
)

try:
    import ray as _ray
except ImportError:
    _ray = None  # type: ignore[assignment]

ray: Any = _ray  # its own types cover too little

_log = logging.getLogger(__name__)
_INLINE_BYTES = 100 * 1024  # Ray sends values up to this size inside a call, larger ones through its object store
_FRESH_SECONDS = 0.005  # in which somebody may come to wait for a call
_AWAY_SECONDS = 0.05  # in which somebody who asked for results may come again
_ASK_SECONDS = 0.1  # to wait for a result in Ray, where Ctrl-C is not noticed
_QUICK_SECONDS = 0.0003  # for a result that was there, or nearly
_GRACE_SECONDS = 0.25  # for Ray to end an actor; killed at once, Ray would report a crash
_NICENESS = "RAY_worker_niceness"  # Ray's settings are read from variables of the environment
_RESULT, _FAILURE, _REQUEST, _PARKS, _PUT = range(5)  # kinds of wire

Wire = Any
"""`bytes`, or a list of bytes and arrays, or an ObjectRef of one of these."""
Call = tuple[Any, Callable[[Any], None]]
"""A call that Ray has: its ObjectRef, and what to do with the result."""


class RayActor(CoreActor):
    """An actor that Ray runs."""

    key = 0
    """Names one incarnation; what arrives under an older key is discarded."""
    handle: Any = None
    invoke: Any = None
    """Runs calls; to look it up costs."""
    again: Any = None
    """Runs the call before once more."""
    before: Wire = None
    """That call, if it can be."""
    node = ""
    wire: Wire = None
    """The encoded constructor."""
    parked = 0
    """Requests that wait for nested calls."""
    lane: Lane | None = None
    """Memory that it shares with the driver."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.out: dict[int, Any] = {}
        """Calls that Ray has (0: the constructor), in order, each with its reply if that came before its turn."""
        self.queue: dict[int, Message] = {}
        """Calls held here so that they can still be given back."""


class RayEngine(EngineCore):
    """Actors on a Ray cluster.

    If Ray is initialized already that one is used, and left running by `close`. After `kill -9` of the driver it is Ray
    that clears up: it ends the actors of the driver's job. Of a Ray that was started here the actors are gone after
    three seconds or so (as measured), two idle agents of Ray's own after a minute, and its folder `/tmp/raceway-*`,
    which `close` would have removed, stays.

    Args:
        address: a cluster to join, as `ray.init` takes it. By default RAY_ADDRESS, or else a Ray of its own.
        clock: the source of time for deadlines and back-off.
        init_options: further arguments for `ray.init`.
    """

    name = "ray"

    def __init__(
        self,
        *,
        address: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        init_options: Mapping[str, Any] | None = None,
    ) -> None:
        if ray is None:
            raise ConfigError("the ray engine needs Ray: pip install 'raceway[ray]'")
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        if address.startswith("ray://"):
            raise ConfigError(f"{address}: the driver must run on a node of the cluster, so use address='auto' there")
        self._starts_ray = not ray.is_initialized()
        self._is_local = self._starts_ray and address == "local"
        self._folder: str | None = None
        if self._starts_ray:
            self._start_ray(address, dict(init_options or {}))
        super().__init__(Reactor(clock), capacity=ray.cluster_resources().get("CPU", 0.0))
        self._node = ray.get_runtime_context().get_node_id()
        self._actor_class: Any = ray.remote(_actor_class())
        self._mailbox: Any = None
        self._sources: list[Any] | None = None  # an ObjectRef, in a list so that Ray does not resolve it
        self._nearby = Nearby()
        self._keys = itertools.count(1)
        self._living: dict[int, RayActor] = {}
        self._leaving: set[int] = set()  # keys of actors that were told to end and may not have yet
        self._inbox: deque[tuple[Callable[[Any], None], Any]] = deque()
        self._rung = False  # whether somebody has called since the inbox was last looked into
        self._calls: dict[Future[Any], Call] = {}  # those that Ray has
        self._untold: dict[Future[Any], Call] = {}  # and of which it was not asked to tell
        self._will_listen = False
        self._asking: list[Sequence[Future[Any]]] = []  # what threads ask Ray for
        self._spared = False  # whether calls were left untold once more, for one who may come again to ask
        self._asked_at = -math.inf  # when one last did
        self._hurried = False  # whether results come as quickly as they are asked for, so that there may be several
        self._bell_out, self._bell_in = socket.socketpair()
        self._bell_out.setblocking(False)
        self.reactor.watch(self._bell_out.fileno(), self._drain)

    def _start_ray(self, address: str, options: dict[str, Any]) -> None:
        """Start or join Ray. Its processes block SIGINT by themselves, so Ctrl-C reaches the driver alone."""
        options = {"address": address, "log_to_driver": True, "logging_level": logging.ERROR} | options
        environ = {}
        if self._is_local:
            options.setdefault("include_dashboard", False)
            if "_temp_dir" not in options:
                # Not where TMPDIR points: Ray's sockets live there, and their paths must be short.
                self._folder = options["_temp_dir"] = tempfile.mkdtemp(prefix=f"raceway-{os.getpid()}-", dir="/tmp")
            # Workers inherit these: faster than to have Ray prepare an environment for every actor.
            environ = thread_environment(1) | {"RAY_USAGE_STATS_ENABLED": "0"}
            # Ray would have them give way to all else, and then they compute a tenth slower, even on a free core.
            environ[_NICENESS] = os.environ.get(_NICENESS, "0")
        _print_on_stderr()
        before = {name: os.environ.get(name) for name in environ}
        os.environ.update(environ)
        try:
            ray.init(**options)
        except BaseException:
            self._remove_folder()
            raise
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value

    # News from Ray.

    def block(self, ready: Callable[[], Any], timeout: float | None, on: Future[Any] | Among | None = None) -> None:
        """Return when `ready()`; raise WaitTimeout if that takes too long.

        Who waits for calls alone asks Ray itself for their results: to be told of them costs a fifth more.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not ready():
            awaited = ([on], 1) if isinstance(on, Future) else on() if on is not None else None
            left = _ASK_SECONDS if timeout is None else min(_ASK_SECONDS, until - time.monotonic())
            if awaited is None or left <= 0 or not self._ask_ray(*awaited, left):
                self._listen()
                super().block(ready, None if timeout is None else max(0.0, until - time.monotonic()), on)

    def _ask_ray(self, futures: Sequence[Future[Any]], count: int, seconds: float) -> bool:
        """Wait for that many of the calls, and take in what has come; return whether it was possible to ask."""
        found: dict[Any, Any] = {}
        calls = self._calls
        with self.lock:
            try:
                replied = dict([calls[future] for future in futures])
            except KeyError:
                return False
            if not replied:
                return False
            self._asking.append(futures)
        begun = time.perf_counter()
        try:
            found = _ready(list(replied), count, seconds, self._hurried)
        finally:
            with self.lock:
                self._asking.remove(futures)
                self._asked_at = self.clock()
                self._hurried = time.perf_counter() - begun < _QUICK_SECONDS
                for ref, result in found.items():
                    replied[ref](result)
                if self._untold and not self._will_listen:
                    self._listen_later(_AWAY_SECONDS)
                if found:
                    self.reactor.changed()
        return True

    def _listen_later(self, seconds: float = _FRESH_SECONDS) -> None:
        self._will_listen = True
        self.reactor.at(self.clock() + seconds, self._listen_if_idle)

    def _listen_if_idle(self) -> None:
        self._will_listen = False
        comes_again = not self._asking and self.clock() - self._asked_at < _AWAY_SECONDS
        self._spared = comes_again and not self._spared  # once, or it would be for ever
        if self._spared:
            self._listen_later(_AWAY_SECONDS)
        else:
            self._listen()

    def _listen(self) -> None:
        """Have Ray tell when the calls are done that nobody has come to wait for."""
        with self.lock:
            asked = {future for futures in self._asking for future in futures}
            for future in [one for one in self._untold if one not in asked]:
                self._when(*self._untold.pop(future))

    def _when(self, ref: Any, handle: Callable[[Any], None]) -> None:
        """Call `handle(result)` in the reactor's loop once a task is done; if it failed that is Ray's exception."""
        ref.future().add_done_callback(lambda future: self._post(handle, future.exception() or future.result()))

    def _post(self, handle: Callable[[Any], None], result: Any) -> None:
        """Have a result handled in the reactor's loop. Called on threads of Ray's."""
        self._inbox.append((handle, result))
        if not self._rung:
            self._rung = True
            try:
                self._bell_in.send(b"\0")
            except OSError:
                pass  # the engine was closed meanwhile

    def _drain(self, mask: int = 0) -> None:
        try:
            self._bell_out.recv(64)
        except BlockingIOError:
            pass
        self._rung = False  # before looking: whoever adds something after that rings again
        inbox = self._inbox
        while inbox:
            handle, result = inbox.popleft()
            handle(result)

    def glance(self) -> None:
        """Take in what has come, without waiting."""
        if self._inbox:
            super().glance()

    def _drained(self, actor: CoreActor, id: int) -> bool:
        self._drain()
        call = self._calls.get(actor.calls[id][0]) if id in actor.calls else None
        if call is not None:
            for result in _ready([call[0]], 1, 0.0).values():
                call[1](result)
        return id not in actor.calls

    # Starting and ending an actor.

    def _check_resources(self, needs: Resources) -> None:
        asked = _wanted(needs)
        if not asked:
            return
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(node.get(name, 0) >= amount for name, amount in asked.items()) for node in nodes):
            has = "; ".join(_shown({name: node.get(name, 0) for name in asked}) for node in nodes)
            raise ResourceError(
                f"{_shown(asked)} were asked for, and no node of the Ray cluster has that. They have: {has}"
            )

    def _new_actor(self, *parts: Any) -> RayActor:
        return RayActor(self, *parts)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, RayActor)
        if self._mailbox is None:
            self._open_mailbox()
        if actor.wire is None:
            actor.wire = _share(actor.factory)
        needs, key = actor.resources, next(self._keys)
        options: dict[str, Any] = {"num_cpus": needs.cpus or 0, "num_gpus": needs.gpus, "resources": needs.custom}
        if not (self._is_local and actor.threads == 1):
            options["runtime_env"] = {"env_vars": thread_environment(actor.threads)}
        options |= {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
        spec = {
            "uid": self.uid,
            "name": actor.name,
            "key": key,
            "mailbox": self._mailbox,
            "path": [os.path.abspath(entry) for entry in sys.path],
            "argv": sys.argv,
            "sources": self._sources,
        }
        actor.handle = self._actor_class.options(**options).remote(spec)
        actor.invoke, actor.again, actor.before = actor.handle.invoke.remote, _straight(actor.handle, "again"), None
        actor.key, actor.node, actor.parked = key, "", 0
        self._living[key] = actor
        self._when(actor.handle.where.remote(), partial(self._placed, key))
        self._when(self._mailbox.watch.remote([actor.handle]), partial(self._ended, key))
        self._call_ray(actor, 0, actor.handle.construct.remote, actor.factory.handles, actor.wire)
        self.reactor.at(self.clock() + actor.start_timeout, lambda: self._late(key))

    def _open_mailbox(self) -> None:
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(self._node, soft=False)
        mailbox: Any = ray.remote(_mailbox_class())
        self._mailbox = mailbox.options(num_cpus=0, max_concurrency=1_000_000, scheduling_strategy=here).remote()
        self._when(self._mailbox.take.remote(), self._asked)
        if self._sources is None and not self._is_local:
            self._sources = [ray.put(collect_sources(sys.path))]

    def _placed(self, key: int, result: Any) -> None:
        actor = self._living.get(key)
        if actor is not None and not isinstance(result, BaseException):
            actor.pid, actor.node = result
            if actor.node == self._node:
                actor.lane = self._nearby.open()
                if actor.lane is not None:
                    self._when(actor.handle.share.remote(actor.lane.offer), partial(self._shared, key))

    def _shared(self, key: int, result: Any) -> None:
        actor = self._living.get(key)
        if actor is not None and actor.lane is not None and result is True:
            actor.lane.accepted = True

    def _late(self, key: int) -> None:
        actor = self._living.get(key)
        if actor is None or actor.ready.done():
            return
        asked, free = _wanted(actor.resources), ray.available_resources()
        if actor.pid is not None:
            why = f"its constructor was still running (pid {actor.pid} on node {actor.node})"
        else:
            why = "Ray had not started its process"
            if asked:
                has = _shown({name: free.get(name, 0) for name in asked})
                why += f"; it asked for {_shown(asked)}, and the cluster has {has} free"
        text = f"{actor.name} was not ready after {actor.start_timeout:g} s (start_timeout): {why}"
        self._lost(actor, ActorStartError(text, actor.name))

    def _ended(self, key: int, result: Any) -> None:
        """Note what the mailbox saw. If calls are out they will tell, after the results that still come."""
        actor = self._living.get(key)
        if actor is not None and not actor.out and not isinstance(result, BaseException):
            self._died(actor, *result)

    def _died(self, actor: RayActor, why: str, is_gone: bool) -> None:
        kind, when = (ActorDied, "") if actor.ready.done() else (ActorStartError, " before it was ready")
        which = actor.name if actor.pid is None else f"{actor.name} (pid {actor.pid})"
        failure = kind(f"{which} died{when}. {_reason(why)}", actor.name)
        if is_gone:
            actor.pid = None  # there is no process left to kill
        self._lost(actor, failure)

    def _end(self, actor: CoreActor) -> None:
        assert isinstance(actor, RayActor)
        if self._living.pop(actor.key, None) is None:
            return  # Ray refused to start it
        pid, node, handle, lane = actor.pid, actor.node, actor.handle, actor.lane
        actor.pid = actor.handle = actor.invoke = actor.again = actor.lane = None
        actor.out.clear()
        actor.queue.clear()
        for future, _ in actor.calls.values():
            self._forget(future)
        if ray.is_initialized():
            ray.kill(handle)
            if pid is not None:
                # Ray waits for seconds before it kills a process that is stopped.
                self._leaving.add(actor.key)
                self.reactor.at(self.clock() + _GRACE_SECONDS, partial(self._kill_process, actor.key, pid, node, lane))
                return
        self._nearby.close(lane)

    def _kill_process(self, key: int, pid: int, node: str, lane: Lane | None) -> None:
        self._leaving.discard(key)

        def kill() -> None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

        if node == self._node:
            kill()
        elif ray.is_initialized():
            there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
            ray.remote(kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote()
        self._nearby.close(lane)

    # Calls.

    def _seal(self, message: Message) -> None:
        message.wire = _share(message.payload, [ref.id for ref in message.refs])
        message.payload = Payload(b"", [], message.payload.handles)

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, RayActor)
        if not (actor.hands_back and (actor.out or actor.queue)):
            self._submit(actor, id, message)
            return
        actor.queue[id] = message
        if actor.parked:
            self._post(self._give_back, actor.key)  # later: the caller is not done with it

    def _submit(self, actor: RayActor, id: int, message: Message) -> None:
        if actor.before is message.wire:  # whose arguments Ray need not carry there again: a tenth of a call
            self._call_ray(actor, id, actor.again, None)
            return
        stored = [self._stored.get(ref.id) for ref in message.refs]
        if None in stored:
            missing = message.refs[stored.index(None)].id
            actor.calls.pop(id)[0].fail(ObjectFreed(f"reference {missing} is not stored here any more"))
            return
        values = [value for value in stored if value is not None]
        handles = [handle for part in (message.payload, *values) for handle in part.handles or ()]
        actor.before = message.wire if isinstance(message.wire, bytes) and not (handles or stored) else None
        self._call_ray(
            actor, id, actor.invoke, handles, message.wire, *(value.keep.near(actor.lane) for value in values)
        )

    def _call_ray(self, actor: RayActor, id: int, call: Any, handles: Sequence[Handle] | None, *wires: Wire) -> None:
        self._count(actor, handles)
        actor.out[id] = None
        ref, replied = call(*wires), partial(self._replied, actor, actor.key, id)
        if id == 0:
            self._when(ref, replied)
            return
        future = actor.calls[id][0]
        self._calls[future] = ref, replied
        if actor.hands_back:
            self._when(ref, replied)  # it gets its next call then, whoever waits for what
            return
        self._untold[future] = ref, replied
        if not self._will_listen:
            self._listen_later(_AWAY_SECONDS if self.clock() - self._asked_at < _AWAY_SECONDS else _FRESH_SECONDS)

    def _count(self, actor: RayActor, handles: Sequence[Handle] | None) -> None:
        if handles:
            self._handles.sent(actor, [handle.id for handle in handles])

    def _replied(self, actor: RayActor, key: int, id: int, result: Any) -> None:
        """Take in replies in the order of their calls: Ray may tell of a small one before the large one before it."""
        if self._living.get(key) is not actor or actor.out.get(id, result) is not None:
            return  # the second time, as it was both asked and told
        if id:
            self._forget(actor.calls[id][0])
        actor.out[id] = result
        for first in list(actor.out):
            reply = actor.out.get(first)
            if reply is None:
                return
            del actor.out[first]
            self._take(actor, first, reply)
            while actor.queue and not actor.out:
                following = next(iter(actor.queue))
                self._submit(actor, following, actor.queue.pop(following))

    def _forget(self, future: Future[Any]) -> None:
        self._calls.pop(future, None)
        self._untold.pop(future, None)

    def _take(self, actor: RayActor, id: int, result: Any) -> None:
        if isinstance(result, BaseException):
            if id == 0 or isinstance(result, _fatal()):
                self._died(actor, str(result), isinstance(result, ray.exceptions.ActorDiedError))
            else:  # Ray lost the result, or could not store it
                self.finished(actor, id, describe_error(result, actor.name, actor.calls[id][1].method), True)
            return
        try:
            kind, numbers, payload = self._open(result, actor.lane)
        except OSError as error:  # no more files or addresses to map it
            self.finished(actor, id, describe_error(error, actor.name, actor.calls[id][1].method), True)
            return
        actor.last_micros = numbers[0]
        pairs = iter(numbers[1:])
        for handle, arrivals in zip(pairs, pairs, strict=True):
            self._handles.released(actor, handle, arrivals)
        if id:
            self.finished(actor, id, payload, kind == _FAILURE)
        elif kind == _FAILURE:
            cause = revive_error(payload)
            failure = ActorStartError(f"{actor.name} could not start: {type(cause).__name__}: {cause}", actor.name)
            failure.__cause__ = cause
            self._lost(actor, failure)
        else:
            actor.ready.fulfil(True)

    def _open(self, wire: Wire, lane: Lane | None = None) -> tuple[int, tuple[int, ...], Payload]:
        """Take a wire apart, and hold the handles in it."""
        kind, numbers, handles, lent, payload = _unpack(wire)
        if lent:
            assert lane is not None
            payload.buffers = lane.read(lent)
        if handles:
            payload.handles = [Handle(self._handles, id) for id in handles]
        return kind, numbers, payload

    # Requests from actors.

    def _asked(self, result: Any) -> None:
        if self.closed:
            return
        if isinstance(result, BaseException):  # without it nobody can ask: start again with a new one
            self._mailbox = None
            for orphan in list(self._living.values()):
                self._lost(orphan, ActorDied(f"{orphan.name} died with the mailbox of its engine", orphan.name))
            return
        self._when(self._mailbox.take.remote(), self._asked)
        for id, wire in result:
            kind, (key,), payload = self._open(wire)
            actor = self._living.get(key)
            if actor is None:
                self._mailbox.deliver.remote(id, b"")  # it has died since
            else:
                self._requested(actor, kind, partial(self._reply, actor, key, id, kind == _PARKS), payload)

    def _requested(self, actor: RayActor, kind: int, reply: Callable[..., None], payload: Payload) -> None:
        try:
            if kind == _PUT:
                reply(_codec.encode(self.store(payload)), False)
                return
            request = self.decode(payload)
            if request[0] == "fetch":
                stored = self._stored.get(request[1])
                if stored is None:
                    raise ObjectFreed(f"reference {request[1]} is not stored here any more")
                reply(Payload(b"", [stored.keep.far()], stored.handles), False)
                return
        except RacewayError as error:
            reply(describe_error(error, actor.name, "request"), True)
            return
        if kind == _PARKS:
            actor.parked += 1
            self._give_back(actor.key)
        self.answer(actor, request, reply)

    def _reply(self, actor: RayActor, key: int, id: int, parked: bool, answer: Payload, failed: bool) -> None:
        if self.closed or self._mailbox is None:
            return
        if self._living.get(key) is actor:
            actor.parked -= parked
            self._count(actor, answer.handles)
        self._mailbox.deliver.remote(id, _pack(answer, _FAILURE if failed else _RESULT))

    def _give_back(self, key: int) -> None:
        """Return the calls that have not begun, as the one that runs waits for another."""
        actor = self._living.get(key)
        if actor is not None and actor.parked and actor.queue and actor.on_lost is not None:
            calls = [actor.calls.pop(id) for id in actor.queue]
            actor.queue.clear()
            actor.on_lost(actor, calls)

    # Stored values.

    def _kept(self, payload: Payload) -> Payload:
        return Payload(b"", [], payload.handles, _Kept(payload, self._nearby))

    def decode(self, payload: Payload) -> Any:
        """Rebuild a value."""
        if payload.keep is not None:
            payload = payload.keep.payload()
        return _codec.decode(payload)

    # The end.

    def _close(self) -> None:
        if self._mailbox is not None and ray.is_initialized():
            ray.kill(self._mailbox)
        self.reactor.wait(lambda: not self._leaving, timeout=8 * _GRACE_SECONDS)
        with self.lock:
            self._rung = True  # so that nobody rings
            self.reactor.unwatch(self._bell_out.fileno())
            self._bell_in.close()
            self._bell_out.close()
            self._inbox.clear()
            self._mailbox = self._sources = None
            self._nearby.end()
            for actor in self._actors.values():
                assert isinstance(actor, RayActor)
                actor.wire = None
        if self._starts_ray:
            ray.shutdown()
            self._remove_folder()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


_OPTIONS = {"num_returns": 1, "max_task_retries": 0, "enable_task_events": False}
"""Of every call of an actor."""


def _straight(handle: Any, method: str) -> Callable[[], Any]:
    """Return what calls a method of an actor that takes nothing.

    Ray goes through all options of a call each time, which is a fifth of its cost. If this Ray has the inner function
    with the options that are known here, that is called.
    """
    inner = getattr(handle, "_actor_method_call", None)
    if inner is None or not {"method_name", *_OPTIONS} <= inspect.signature(inner).parameters.keys():
        return getattr(handle, method).remote  # type: ignore[no-any-return]
    return partial(inner, method, **_OPTIONS)


def _ready(refs: list[Any], count: int, seconds: float, hurried: bool = False) -> dict[Any, Any]:
    """Wait for so many tasks, and return the results of those that are done; if one failed that is Ray's exception.

    To wait for one is told of one, also where more are done. So who is in a hurry looks first at what is there.
    """
    if count >= len(refs):
        try:
            return dict(zip(refs, ray.get(refs, timeout=seconds), strict=True))
        except ray.exceptions.RayError:
            seconds = 0  # the time is up, or one of them has failed
    done = ray.wait(refs, num_returns=len(refs), timeout=0)[0] if hurried and seconds else []
    if len(done) < count:
        done = ray.wait(refs, num_returns=count, timeout=seconds)[0]
    try:
        return dict(zip(done, ray.get(done), strict=True))
    except ray.exceptions.RayError:
        return {ref: _result_of(ref) for ref in done}


def _result_of(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.RayError as error:
        return error


def _wanted(needs: Resources) -> dict[str, float]:
    amounts = {"CPU": needs.cpus or 0, "GPU": needs.gpus, **(needs.custom or {})}
    return {name: amount for name, amount in amounts.items() if amount}


def _shown(resources: Mapping[str, float]) -> str:
    ours = {"CPU": "cpus", "GPU": "gpus"}
    return ", ".join(f"{amount:g} {ours.get(name, name)}" for name, amount in resources.items())


def _print_on_stderr() -> None:
    """Have Ray print there what it has to say. It knows no option for that, and stdout is the user's."""
    worker = ray._private.worker
    printed = getattr(worker, "print_to_stdstream", None)
    if printed is not None and printed.__module__ == worker.__name__:  # and not ours already
        worker.print_to_stdstream = lambda data, *rest, **more: printed({**data, "is_err": True}, *rest, **more)


def _fatal() -> tuple[type[BaseException], ...]:
    errors = ray.exceptions
    return errors.RayActorError, errors.NodeDiedError, errors.LocalRayletDiedError, errors.OutOfMemoryError


def _reason(text: str) -> str:
    """Return what Ray says of a death, without ids and guesses."""
    told = " ".join(line for line in text.splitlines() if not line.startswith("\t"))
    return told.removeprefix("The actor died unexpectedly before finishing this task. ").split(" Some common causes")[0]


# Wires.

_HEADER = struct.Struct("<BIII")


def _pack(
    payload: Payload, kind: int = _RESULT, numbers: Sequence[int] = (), handles: Sequence[int] = (), lent: Lent = ()
) -> Wire:
    """Make one value for Ray of a payload and what goes with it; its buffers may lie elsewhere."""
    handles = handles or [handle.id for handle in payload.handles or ()]
    header = _HEADER.pack(kind, len(numbers), len(handles), len(lent)) + struct.pack(
        f"<{len(numbers) + len(handles) + len(lent)}Q", *numbers, *handles, *lent
    )
    frame = header + payload.body
    if lent or not payload.buffers:
        return frame
    return [
        frame,
        *(np.frombuffer(part, np.uint8) if isinstance(part, memoryview) else part for part in payload.buffers),
    ]


def _unpack(wire: Wire) -> tuple[int, tuple[int, ...], tuple[int, ...], Lent, Payload]:
    """Return kind, numbers, ids of handles, where the buffers lie if not here, and payload."""
    frame, buffers = (wire, []) if isinstance(wire, bytes) else (wire[0], wire[1:])
    kind, num_numbers, num_handles, num_lent = _HEADER.unpack_from(frame)
    lent_at, end = num_numbers + num_handles, num_numbers + num_handles + num_lent
    numbers = struct.unpack_from(f"<{end}Q", frame, _HEADER.size)
    body = memoryview(frame)[_HEADER.size + 8 * end :]
    return kind, numbers[:num_numbers], numbers[num_numbers:lent_at], numbers[lent_at:], Payload(body, buffers)


def _share(payload: Payload, numbers: Sequence[int] = ()) -> Wire:
    """Make a wire that lasts and can be sent many times: what is large is stored, once."""
    size = len(payload.body) + sum(memoryview(buffer).nbytes for buffer in payload.buffers)
    if size <= _INLINE_BYTES:
        return _pack(owned(payload), numbers=numbers)
    try:
        return ray.put(_pack(payload, numbers=numbers))
    except ray.exceptions.ObjectStoreFullError as error:
        raise SharedMemoryError(f"{size:,} bytes do not fit into Ray's object store: {error}") from error


def _fetched(wire: Wire) -> Wire:
    return ray.get(wire) if isinstance(wire, ray.ObjectRef) else wire


class _Kept:
    """A stored value: on a shelf for actors that are near, with Ray, which may spill it to disk, for others."""

    def __init__(self, payload: Payload, nearby: Nearby) -> None:
        self._shelf = nearby.keep(payload.buffers) if payload.size > _INLINE_BYTES and payload.buffers else None
        self._rest = Payload(bytes(payload.body), [], payload.handles) if self._shelf is not None else None
        self._far = None if self._shelf is not None else _share(payload)

    def near(self, lane: Lane | None) -> Wire:
        """Return it for an actor that has this lane, which is about to be sent it."""
        if self._shelf is None or lane is None or not lane.accepted:
            return self.far()
        assert self._rest is not None
        return _pack(self._rest, lent=self._shelf.lend(lane))

    def far(self) -> Wire:
        """Return it for any actor."""
        if self._far is None:
            self._far = _share(self.payload())
        return self._far

    def payload(self) -> Payload:
        """Return it for the driver."""
        if self._shelf is None:
            return _unpack(_fetched(self._far))[-1]
        assert self._rest is not None
        return Payload(self._rest.body, self._shelf.buffers(), self._rest.handles)


# What runs in Ray's processes.


class Host:
    """The inside of an actor: runs its calls, and is its way to the driver."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.uid: str = spec["uid"]
        self.actor: str = spec["name"]
        self._key: int = spec["key"]
        self._mailbox = spec["mailbox"]
        self._handles = AwayTable(self.uid)
        self._handles.read = self._read
        self._values: dict[int, Payload] = {}  # stored values that were read, while their references are held
        self._home = Home(None)
        self.before: Wire = None
        """The last call."""
        self._neighbour: Neighbour | None = None
        driver_client.set_driver_client(self)
        keep_freed_memory()

    def run(self, making: bool, wire: Wire, *stored: Wire) -> Wire:
        """Make the actor's object, or run one of its calls."""
        start = time.perf_counter_ns()
        kind, method = _RESULT, "__init__" if making else "?"
        payload = values = call = None
        self.before = wire if isinstance(wire, bytes) else None  # large arrays are not held
        try:
            _, refs, payload = self._open(wire)
            values = {id: self._open(value)[2] for id, value in zip(refs, stored, strict=True)}
            call = _codec.decode(payload)
            if making:
                self._home.object = call[0](*call[1], **call[2])
                result = _codec.encode(None)
            else:
                method = name_of(call[0])
                result = _codec.encode(run_call(self._home, call, partial(_decode_one, values)), "the result")
        except BaseException as error:
            kind, result = _FAILURE, describe_error(error, self.actor, method, skip=1 if making else 2)
        micros = (time.perf_counter_ns() - start) // 1000
        # The driver takes hold of what the reply refers to before it reads what is released, so let go of it all now.
        payload = values = call = None
        handles, result.handles = [handle.id for handle in result.handles or ()], None
        releases = self._handles.take_releases()
        for id, _ in releases:
            self._values.pop(id, None)
        lent = self._neighbour.lend(result.buffers) if self._neighbour is not None and result.buffers else ()
        return _pack(result, kind, [micros, *itertools.chain.from_iterable(releases)], handles, lent)

    def share(self, offer: Offer) -> bool:
        """Share memory with the driver from now on, if that can be; return whether."""
        self._neighbour = neighbour_of(offer)
        return self._neighbour is not None

    def _open(self, wire: Wire) -> tuple[int, tuple[int, ...], Payload]:
        kind, numbers, handles, lent, payload = _unpack(wire)
        if lent:
            assert self._neighbour is not None
            payload.buffers = self._neighbour.read(lent)
        if handles:
            payload.handles = self._handles.arrived(handles)
        return kind, numbers, payload

    def request(self, value: Any, *, parks: bool = False) -> Any:
        """Ask the driver and wait for its answer."""
        return _codec.decode(self._ask(_PARKS if parks else _REQUEST, value))

    def put(self, value: Any) -> Ref:
        """Store a value with the driver, which does not look at it."""
        return _codec.decode(self._ask(_PUT, value))  # type: ignore[no-any-return]

    def _read(self, id: int) -> Any:
        """Read a stored value by its reference."""
        if id not in self._values:
            self._values[id] = self._open(_fetched(self._ask(_REQUEST, ("fetch", id)).buffers[0]))[2]
        return _codec.decode(self._values[id])

    def _ask(self, kind: int, value: Any) -> Payload:
        payload = _codec.encode(value)  # holds the handles in it until the driver does
        try:
            wire = ray.get(self._mailbox.ask.remote(_pack(payload, kind, [self._key])))
        except ray.exceptions.RayActorError:
            raise EngineClosed("the driver is gone") from None
        kind, _, answer = self._open(wire)
        if kind == _FAILURE:
            raise revive_error(answer)
        return answer


def _decode_one(values: dict[int, Payload], id: int) -> Any:
    return _codec.decode(values[id])


# The classes that Ray is given are local ones: those it sends by value, so that they work in a process that cannot
# import raceway before they have told it where it is.


def _actor_class() -> type:
    class Shipped(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
        """Imports modules that are only on the driver's machine, from the sources it sent."""

        def __init__(self, ref: Any) -> None:
            self._ref = ref
            self._sources: dict[str, tuple[str, bool, str]] | None = None

        def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
            if self._sources is None:
                self._sources = ray.get(self._ref)
            return importlib.util.spec_from_loader(name, self) if name in self._sources else None

        def get_source(self, name: str) -> str:
            return self._sources[name][0]  # type: ignore[index]

        def is_package(self, name: str) -> bool:
            return self._sources[name][1]  # type: ignore[index]

        def get_filename(self, name: str) -> str:
            return self._sources[name][2]  # type: ignore[index]

    class RacewayActor:
        _host: Any  # of the class: a process has one actor

        def __init__(self, spec: dict[str, Any]) -> None:
            self._name = spec["name"]
            os.dup2(2, 1)  # or Ray would print what it prints on the driver's stdout, which is the user's
            sys.argv[:] = spec["argv"]
            sys.path.extend(entry for entry in spec["path"] if entry not in sys.path and os.path.exists(entry))
            if spec["sources"] is not None:
                sys.meta_path.append(Shipped(spec["sources"][0]))
            from raceway.engine.ray.engine import Host

            type(self)._host = Host(spec)

        def __repr__(self) -> str:
            return str(self._name)  # in front of what it prints

        def where(self) -> tuple[int, str]:
            return os.getpid(), ray.get_runtime_context().get_node_id()

        def share(self, offer: Any) -> Any:
            return self._host.share(offer)

        def construct(self, wire: Any) -> Any:
            return self._host.run(True, wire)

        def invoke(self, wire: Any, *stored: Any) -> Any:
            return self._host.run(False, wire, *stored)

        @classmethod  # for which Ray need not look at the signature: a tenth of the call
        def again(cls) -> Any:
            return cls._host.run(False, cls._host.before)

        def live(self, never: None) -> None:
            """Never run; see the mailbox."""

    return RacewayActor


def _mailbox_class() -> type:
    class RacewayMailbox:
        def __init__(self) -> None:
            self._asked: list[tuple[int, Any]] = []
            self._answers: dict[int, asyncio.Future[Any]] = {}
            self._ids = itertools.count()
            self._news = asyncio.Event()
            self._never: Any = None

        async def ask(self, wire: Any) -> Any:
            """Pass a request on to the driver; return its answer."""
            id = next(self._ids)
            self._asked.append((id, wire))
            self._news.set()
            self._answers[id] = asyncio.get_running_loop().create_future()
            return await self._answers[id]

        async def take(self) -> list[tuple[int, Any]]:
            """Return the requests that have come, once there are any."""
            await self._news.wait()
            self._news.clear()
            asked, self._asked = self._asked, []
            return asked

        async def deliver(self, id: int, wire: Any) -> None:
            self._answers.pop(id).set_result(wire)

        async def watch(self, handles: list[Any]) -> Any:
            """Return why an actor died, when it does: a call that waits for an argument for ever fails only with it."""
            if self._never is None:
                self._never = ray.get_runtime_context().current_actor.never.remote()
            try:
                await handles[0].live.remote(self._never)
            except ray.exceptions.RayError as error:
                return str(error), isinstance(error, ray.exceptions.ActorDiedError)
            raise AssertionError("never came")

        async def never(self) -> None:
            await asyncio.Event().wait()

    return RacewayMailbox
