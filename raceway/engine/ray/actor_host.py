"""What runs inside a Ray actor."""

from __future__ import annotations

import itertools
import os
import sys
import time
from functools import partial
from typing import Any

from raceway.engine import _codec, driver_client
from raceway.engine._calls import ActorContext, decode_error, encode_error, method_name, run_call
from raceway.engine._codec import Payload
from raceway.engine._reference_counts import WorkerHandles
from raceway.engine.base import Ref
from raceway.engine.malloc import keep_freed_memory
from raceway.engine.ray import ray
from raceway.engine.ray.memory_sharing import ActorEnd, SharedMemoryOffer, open_actor_end
from raceway.engine.ray.modules import module_finder_class
from raceway.engine.ray.wire import FAILURE, PUT, REQUEST, RESULT, WAITING_REQUEST, Wire, fetch, pack, unpack
from raceway.errors import EngineClosed


class ActorHost:
    """Runs the calls of an actor, and is its connection to the driver (`DriverClient`)."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.uid: str = spec["uid"]
        self.actor: str = spec["name"]
        self._key: int = spec["key"]
        self._mailbox = spec["mailbox"]
        self._handles = WorkerHandles(self.uid)
        self._handles.read = self._read
        self._values: dict[int, Payload] = {}  # stored values that were read, while their references are held
        self._context = ActorContext(None)
        self.last_wire: Wire = None
        """The last call, unless it carried large arrays."""
        self._memory: ActorEnd | None = None
        driver_client.set_driver_client(self)
        keep_freed_memory()

    def run(self, is_constructor: bool, wire: Wire, *stored: Wire) -> Wire:
        """Create the actor's object, or run one of its calls; return the reply."""
        start = time.perf_counter_ns()
        kind, method = RESULT, "__init__" if is_constructor else "?"
        payload = values = call = None
        self.last_wire = wire if isinstance(wire, bytes) else None  # large arrays are not kept
        try:
            _, refs, payload = self._open(wire)
            values = {id: self._open(value)[2] for id, value in zip(refs, stored, strict=True)}
            call = _codec.decode(payload)
            if is_constructor:
                self._context.object = call[0](*call[1], **call[2])
                result = _codec.encode(None)
            else:
                method = method_name(call[0])
                result = _codec.encode(run_call(self._context, call, partial(_decode_value, values)), "the result")
        except BaseException as error:
            kind, result = FAILURE, encode_error(error, self.actor, method, skip=1 if is_constructor else 2)
        micros = (time.perf_counter_ns() - start) // 1000
        # The driver holds the handles of a reply before it reads which were released, so drop all others now.
        payload = values = call = None
        handles, result.handles = [handle.id for handle in result.handles or ()], None
        releases = self._handles.take_releases()
        for id, _ in releases:
            self._values.pop(id, None)
        location = self._memory.write(result.buffers) if self._memory is not None and result.buffers else ()
        return pack(result, kind, [micros, *itertools.chain.from_iterable(releases)], handles, location)

    def share_memory(self, offer: SharedMemoryOffer) -> bool:
        """Share memory with the driver from now on; return whether its files could be opened."""
        self._memory = open_actor_end(offer)
        return self._memory is not None

    def _open(self, wire: Wire) -> tuple[int, tuple[int, ...], Payload]:
        """Return kind, numbers and payload of a wire, with its buffers and handles."""
        kind, numbers, handles, location, payload = unpack(wire)
        if location:
            assert self._memory is not None
            payload.buffers = self._memory.read(location)
        if handles:
            payload.handles = self._handles.count_arrivals(handles)
        return kind, numbers, payload

    def request(self, value: Any, *, waits_for_calls: bool = False) -> Any:
        """Send the driver a request and wait for its answer."""
        return _codec.decode(self._ask(WAITING_REQUEST if waits_for_calls else REQUEST, value))

    def put(self, value: Any) -> Ref:
        """Store a value with the driver, which does not decode it."""
        return _codec.decode(self._ask(PUT, value))  # type: ignore[no-any-return]

    def _read(self, id: int) -> Any:
        """Read a stored value by the id of its reference."""
        if id not in self._values:
            self._values[id] = self._open(fetch(self._ask(REQUEST, ("fetch", id)).buffers[0]))[2]
        return _codec.decode(self._values[id])

    def _ask(self, kind: int, value: Any) -> Payload:
        payload = _codec.encode(value)  # holds the handles in it until the driver does
        try:
            wire = ray.get(self._mailbox.ask.remote(pack(payload, kind, [self._key])))
        except ray.exceptions.RayActorError:
            raise EngineClosed("the driver is gone") from None
        kind, _, answer = self._open(wire)
        if kind == FAILURE:
            raise decode_error(answer)
        return answer


def _decode_value(values: dict[int, Payload], id: int) -> Any:
    return _codec.decode(values[id])


def actor_class() -> type:
    """Return the class that Ray instantiates for every actor.

    It is a local class, which Ray sends by value, so that it works in a process that cannot import raceway before the
    class has set the import path. So outside `__init__` it uses nothing of raceway by name.
    """
    ShippedModuleFinder = module_finder_class()

    class RacewayActor:
        _host: Any  # an attribute of the class: a process has one actor

        def __init__(self, spec: dict[str, Any]) -> None:
            self._name = spec["name"]
            os.dup2(2, 1)  # or Ray would print the actor's output on the driver's stdout, which is the user's
            sys.argv[:] = spec["argv"]
            sys.path.extend(entry for entry in spec["path"] if entry not in sys.path and os.path.exists(entry))
            if spec["sources"] is not None:
                sys.meta_path.append(ShippedModuleFinder(spec["sources"][0]))
            from raceway.engine.ray.actor_host import ActorHost

            type(self)._host = ActorHost(spec)

        def __repr__(self) -> str:
            return str(self._name)  # Ray prints it in front of the actor's output

        def locate(self) -> tuple[int, str]:
            return os.getpid(), ray.get_runtime_context().get_node_id()

        def share_memory(self, offer: Any) -> Any:
            return self._host.share_memory(offer)

        def construct(self, wire: Any) -> Any:
            return self._host.run(True, wire)

        def invoke(self, wire: Any, *stored: Any) -> Any:
            return self._host.run(False, wire, *stored)

        @classmethod  # Ray then skips the signature: a tenth of the cost of a call
        def repeat(cls) -> Any:
            return cls._host.run(False, cls._host.last_wire)

        def never_called(self, never_done: None) -> None:
            """Fail when the actor dies; see the mailbox."""

    return RacewayActor
