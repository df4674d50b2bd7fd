"""`RayEngine`: starts, calls and ends actors on Ray. The package's docstring lists its parts."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raceway.engine import _codec
from raceway.engine._calls import decode_error, encode_error
from raceway.engine._codec import Payload
from raceway.engine._core import CoreActor, EngineCore
from raceway.engine._reactor import Reactor
from raceway.engine.base import AwaitedFutures, Future, Handle, Message, Resources
from raceway.engine.ray import ray
from raceway.engine.ray.actor import ActorStarter, RayActor, death_reason, is_death, kill_process
from raceway.engine.ray.cluster import RayCluster, check_cluster_resources, describe_shortage
from raceway.engine.ray.completions import Completions
from raceway.engine.ray.mailbox import Mailbox
from raceway.engine.ray.memory_sharing import DriverEnd, NodeMemory
from raceway.engine.ray.wire import FAILURE, StoredValue, Wire, pack_reusable, unpack
from raceway.errors import ActorDied, ActorStartError, ObjectFreed

_ASK_SECONDS = 0.1  # longest wait for a result inside Ray, where Ctrl-C is not noticed
_GRACE_SECONDS = 0.25  # for Ray to end an actor; killed at once, Ray would report a crash


class RayEngine(EngineCore):
    """Actors on a Ray cluster.

    If Ray is initialised already, it is used, and `close` leaves it running. After `kill -9` of the driver, Ray itself
    ends the actors of the driver's job. If Ray was started here, the actors are gone after about three seconds
    (measured) and two idle agents of Ray after a minute; its directory `/tmp/raceway-*`, which `close` would have
    removed, stays.

    Args:
        address: a cluster to join, as `ray.init` takes it; raises ConnectionFailed if it cannot be joined. By default
            RAY_ADDRESS, or else a local Ray is started.
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
        self._cluster = RayCluster(address, init_options)
        super().__init__(Reactor(clock), capacity=ray.cluster_resources().get("CPU", 0.0))
        self._completions = Completions(self.reactor)
        self._starter = ActorStarter(self.uid, self._cluster.is_local)
        self._memory = NodeMemory()
        self._mailbox: Mailbox | None = None
        self._keys = itertools.count(1)
        self.living: dict[int, RayActor] = {}
        """The actors that have a process, by key."""
        self._ending: set[int] = set()  # keys of actors that Ray was asked to end and that may still run

    # Waiting.

    def block(
        self, ready: Callable[[], Any], timeout: float | None, awaited: Future[Any] | AwaitedFutures | None = None
    ) -> None:
        """Return when `ready()` is true; raise WaitTimeout after `timeout` seconds.

        A thread that waits only for calls asks Ray for their results itself: a notification costs a fifth more.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not ready():
            calls = ([awaited], 1) if isinstance(awaited, Future) else awaited() if awaited is not None else None
            left = _ASK_SECONDS if timeout is None else min(_ASK_SECONDS, until - time.monotonic())
            if calls is None or left <= 0 or not self._completions.ask(*calls, left):
                self._completions.notify_unasked()
                self._block(ready, None if timeout is None else max(0.0, until - time.monotonic()), timeout, awaited)

    def poll(self) -> None:
        """Receive results that have arrived, without waiting."""
        if self._completions.has_arrivals:
            super().poll()

    def _reply_arrived(self, actor: CoreActor, id: int) -> bool:
        self._completions.empty_inbox()
        if id in actor.calls:
            self._completions.deliver_if_ready(actor.calls[id][0])
        return id not in actor.calls

    # Starting and ending an actor.

    def check_resources(self, needs: Resources) -> None:
        """Raise ResourceError if no node of the cluster has these resources."""
        check_cluster_resources(needs)

    def _new_actor(self, *args: Any) -> RayActor:
        return RayActor(self, *args)

    def _launch(self, actor: CoreActor) -> None:
        assert isinstance(actor, RayActor)
        if self._mailbox is None:
            self._mailbox = Mailbox(self, self._cluster.node, self._completions)
        key = next(self._keys)
        self._starter.start(actor, key, self._mailbox.actor)
        self.living[key] = actor
        self._completions.notify(actor.handle.locate.remote(), partial(self._located, key))
        self._mailbox.watch(actor.handle, partial(self._died, key))
        self._submit(actor, 0, actor.handle.construct.remote, actor.factory.handles, actor.constructor_wire)
        self.call_at(self.clock() + actor.start_timeout, lambda: self._check_ready(key))

    def _located(self, key: int, result: Any) -> None:
        """Share memory with an actor that runs on the driver's node."""
        actor = self.living.get(key)
        if actor is not None and not isinstance(result, BaseException):
            actor.pid, actor.node = result
            if actor.node == self._cluster.node:
                actor.memory = self._memory.connect()
                if actor.memory is not None:
                    ref = actor.handle.share_memory.remote(actor.memory.offer)
                    self._completions.notify(ref, partial(self._memory_shared, key))

    def _memory_shared(self, key: int, result: Any) -> None:
        actor = self.living.get(key)
        if actor is not None and actor.memory is not None and result is True:
            actor.memory.accepted = True

    def _check_ready(self, key: int) -> None:
        actor = self.living.get(key)
        if actor is None or actor.ready.done():
            return
        if actor.pid is not None:
            reason = f"its constructor was still running (pid {actor.pid} on node {actor.node})"
        else:
            reason = f"Ray had not started its process{describe_shortage(actor.resources)}"
        text = f"{actor.name} was not ready after {actor.start_timeout:g} s (start_timeout): {reason}"
        self._declare_dead(actor, ActorStartError(text, actor.name))

    def _died(self, key: int, result: Any) -> None:
        """Handle a death that the mailbox noticed. Outstanding calls report it themselves, after the last results."""
        actor = self.living.get(key)
        if actor is not None and not actor.submitted and not isinstance(result, BaseException):
            self._declare_died(actor, *result)

    def _declare_died(self, actor: RayActor, reason: str, process_is_gone: bool) -> None:
        kind, when = (ActorDied, "") if actor.ready.done() else (ActorStartError, " before it was ready")
        label = actor.name if actor.pid is None else f"{actor.name} (pid {actor.pid})"
        failure = kind(f"{label} died{when}. {death_reason(reason)}", actor.name)
        if process_is_gone:
            actor.pid = None  # there is no process left to kill
        self._declare_dead(actor, failure)

    def lose_mailbox(self) -> None:
        """Declare all actors dead: without a mailbox they cannot send requests. Restarted actors get a new one."""
        self._mailbox = None
        for actor in list(self.living.values()):
            self._declare_dead(actor, ActorDied(f"{actor.name} died with the mailbox of its engine", actor.name))

    def _end(self, actor: CoreActor) -> None:
        assert isinstance(actor, RayActor)
        if self.living.pop(actor.key, None) is None:
            return  # Ray refused to start it
        pid, node, handle, memory = actor.pid, actor.node, actor.handle, actor.memory
        actor.pid = actor.handle = actor.invoke = actor.repeat = actor.memory = None
        actor.submitted.clear()
        actor.queue.clear()
        for future, _ in actor.calls.values():
            self._completions.forget(future)
        if ray.is_initialized():
            ray.kill(handle)
            if pid is not None:
                # Ray waits for seconds before it kills a process that is stopped.
                self._ending.add(actor.key)
                self.call_at(self.clock() + _GRACE_SECONDS, partial(self._kill_process, actor.key, pid, node, memory))
                return
        self._memory.disconnect(memory)

    def _kill_process(self, key: int, pid: int, node: str, memory: DriverEnd | None) -> None:
        self._ending.discard(key)
        kill_process(pid, node, self._cluster.node)
        self._memory.disconnect(memory)

    # Calls.

    def _detach_arguments(self, message: Message) -> None:
        message.wire = pack_reusable(message.payload, [ref.id for ref in message.refs])
        message.payload = Payload(b"", [], message.payload.handles)

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        assert isinstance(actor, RayActor)
        if not (actor.returns_queued_calls and (actor.submitted or actor.queue)):
            self._submit_call(actor, id, message)
            return
        actor.queue[id] = message
        if actor.num_waiting_requests:
            self._completions.post(self.return_queued, actor.key)  # later: the caller still uses the actor

    def return_queued(self, key: int) -> None:
        """Return the calls of an actor that have not started, if the running one waits for nested calls."""
        actor = self.living.get(key)
        if actor is not None and actor.num_waiting_requests and actor.queue and actor.on_calls_returned is not None:
            calls = [actor.calls.pop(id) for id in actor.queue]
            actor.queue.clear()
            actor.on_calls_returned(actor, calls)

    def _submit_call(self, actor: RayActor, id: int, message: Message) -> None:
        if actor.last_wire is message.wire:  # then Ray need not carry the arguments again: a tenth of a call
            self._submit(actor, id, actor.repeat, None)
            return
        stored = [self._stored.get(ref.id) for ref in message.refs]
        if None in stored:
            missing = message.refs[stored.index(None)].id
            actor.calls.pop(id)[0].fail(ObjectFreed(f"reference {missing} is not stored here any more"))
            return
        values = [value for value in stored if value is not None]
        handles = [handle for part in (message.payload, *values) for handle in part.handles or ()]
        actor.last_wire = message.wire if isinstance(message.wire, bytes) and not (handles or stored) else None
        self._submit(
            actor, id, actor.invoke, handles, message.wire, *(value.keep.wire_for(actor.memory) for value in values)
        )

    def _submit(self, actor: RayActor, id: int, method: Any, handles: Sequence[Handle] | None, *wires: Wire) -> None:
        self.count_sent(actor, handles)
        actor.submitted[id] = None
        ref, deliver = method(*wires), partial(self._replied, actor, actor.key, id)
        if id == 0:
            self._completions.notify(ref, deliver)
        elif actor.returns_queued_calls:  # it must get its next call then, whatever threads wait for
            self._completions.add_notified_call(actor.calls[id][0], ref, deliver)
        else:
            self._completions.add_call(actor.calls[id][0], ref, deliver)

    def count_sent(self, actor: RayActor, handles: Sequence[Handle] | None) -> None:
        """Count handles that are sent to an actor."""
        if handles:
            self.handles.count_sent(actor, [handle.id for handle in handles])

    def _replied(self, actor: RayActor, key: int, id: int, result: Any) -> None:
        """Process replies in the order of their calls: Ray may deliver a small one before an earlier large one."""
        if self.living.get(key) is not actor or actor.submitted.get(id, result) is not None:
            return  # delivered a second time: a thread asked for it, and Ray notified of it
        if id:
            self._completions.forget(actor.calls[id][0])
        actor.submitted[id] = result
        for first in list(actor.submitted):
            reply = actor.submitted.get(first)
            if reply is None:
                return
            del actor.submitted[first]
            self._process_reply(actor, first, reply)
            while actor.queue and not actor.submitted:
                following = next(iter(actor.queue))
                self._submit_call(actor, following, actor.queue.pop(following))

    def _process_reply(self, actor: RayActor, id: int, result: Any) -> None:
        if isinstance(result, BaseException):
            if id == 0 or is_death(result):
                self._declare_died(actor, str(result), isinstance(result, ray.exceptions.ActorDiedError))
            else:  # Ray lost the result, or could not store it
                self.finished(actor, id, encode_error(result, actor.name, actor.calls[id][1].method), True)
            return
        try:
            kind, numbers, payload = self.open_wire(result, actor.memory)
        except OSError as error:  # no more files or addresses to map the arena
            self.finished(actor, id, encode_error(error, actor.name, actor.calls[id][1].method), True)
            return
        actor.last_micros = numbers[0]
        releases = iter(numbers[1:])
        for handle, arrivals in zip(releases, releases, strict=True):
            self.handles.count_released(actor, handle, arrivals)
        if id:
            self.finished(actor, id, payload, kind == FAILURE)
        elif kind == FAILURE:
            cause = decode_error(payload)
            failure = ActorStartError(f"{actor.name} could not start: {type(cause).__name__}: {cause}", actor.name)
            failure.__cause__ = cause
            self._declare_dead(actor, failure)
        else:
            actor.ready.set_result(True)

    def open_wire(self, wire: Wire, memory: DriverEnd | None = None) -> tuple[int, tuple[int, ...], Payload]:
        """Return kind, numbers and payload of a wire, with its buffers and handles."""
        kind, numbers, handles, location, payload = unpack(wire)
        if location:
            assert memory is not None
            payload.buffers = memory.read(location)
        if handles:
            payload.handles = [Handle(self.handles, id) for id in handles]
        return kind, numbers, payload

    # Stored values.

    def _to_stored(self, payload: Payload) -> Payload:
        return Payload(b"", [], payload.handles, StoredValue(payload, self._memory))

    def decode(self, payload: Payload) -> Any:
        """Decode a value that has arrived, or a stored one."""
        if payload.keep is not None:
            payload = payload.keep.payload()
        return _codec.decode(payload)

    # Closing.

    def _close(self) -> None:
        if self._mailbox is not None and ray.is_initialized():
            ray.kill(self._mailbox.actor)
        self.reactor.wait(lambda: not self._ending, timeout=8 * _GRACE_SECONDS)
        with self.lock:
            self._completions.close()
            self._mailbox = None
            self._starter.close()
            self._memory.close()
            for actor in self._actors.values():
                assert isinstance(actor, RayActor)
                actor.constructor_wire = None
        self._cluster.close()
