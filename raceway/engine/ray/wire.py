"""Packing values to send them through Ray.

A value travels as one wire: a small header with the encoded body (`bytes`, which Ray moves without pickling them), or,
if there are large arrays, a list of that and their memory, which Ray keeps in its object store and reads in place.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from raceway.engine._calls import copy_buffers
from raceway.engine._codec import Payload
from raceway.engine.ray import ray
from raceway.engine.ray.memory_sharing import DriverEnd, Location, NodeMemory
from raceway.errors import SharedMemoryError

INLINE_BYTES = 100 * 1024
"""Ray sends values up to this size inside a call, larger ones through its object store."""
RESULT, FAILURE, REQUEST, WAITING_REQUEST, PUT = range(5)
"""Kinds of wire: replies, and the requests of an actor. A WAITING_REQUEST is answered after other calls."""
Wire = Any
"""`bytes`, or a list of bytes and arrays, or an ObjectRef of either."""

Unpacked = tuple[int, tuple[int, ...], tuple[int, ...], Location, Payload]
"""Kind, numbers, ids of the handles in the value, the location of its buffers if in shared memory, and the payload."""

_HEADER = struct.Struct("<BIII")  # kind, and the counts of numbers, handles and parts of the location


def pack(
    payload: Payload,
    kind: int = RESULT,
    numbers: Sequence[int] = (),
    handles: Sequence[int] = (),
    location: Location = (),
) -> Wire:
    """Pack a payload as a `Wire`. With a location, its buffers are in shared memory and are left out."""
    handles = handles or [handle.id for handle in payload.handles or ()]
    header = _HEADER.pack(kind, len(numbers), len(handles), len(location)) + struct.pack(
        f"<{len(numbers) + len(handles) + len(location)}Q", *numbers, *handles, *location
    )
    frame = header + payload.body
    if location or not payload.buffers:
        return frame
    return [
        frame,
        *(np.frombuffer(part, np.uint8) if isinstance(part, memoryview) else part for part in payload.buffers),
    ]


def unpack(wire: Wire) -> Unpacked:
    """Unpack a `Wire`: the inverse of `pack`."""
    frame, buffers = (wire, []) if isinstance(wire, bytes) else (wire[0], wire[1:])
    kind, num_numbers, num_handles, num_location = _HEADER.unpack_from(frame)
    handles_end = num_numbers + num_handles
    end = handles_end + num_location
    integers = struct.unpack_from(f"<{end}Q", frame, _HEADER.size)
    body = memoryview(frame)[_HEADER.size + 8 * end :]
    return (
        kind,
        integers[:num_numbers],
        integers[num_numbers:handles_end],
        integers[handles_end:],
        Payload(body, buffers),
    )


def pack_reusable(payload: Payload, numbers: Sequence[int] = ()) -> Wire:
    """Return a wire that can be sent any number of times: a large one is stored in Ray once."""
    size = len(payload.body) + sum(memoryview(buffer).nbytes for buffer in payload.buffers)
    if size <= INLINE_BYTES:
        return pack(copy_buffers(payload), numbers=numbers)
    try:
        return ray.put(pack(payload, numbers=numbers))
    except ray.exceptions.ObjectStoreFullError as error:
        raise SharedMemoryError(f"{size:,} bytes do not fit into Ray's object store: {error}") from error


def fetch(wire: Wire) -> Wire:
    """Return a wire, read from Ray's object store if it is a reference."""
    return ray.get(wire) if isinstance(wire, ray.ObjectRef) else wire


class StoredValue:
    """A stored value: in shared memory for actors on the driver's node, in Ray's store, which may spill, for others."""

    def __init__(self, payload: Payload, memory: NodeMemory) -> None:
        is_large = payload.size > INLINE_BYTES and payload.buffers
        self._shared = memory.store(payload.buffers) if is_large else None
        self._rest = Payload(bytes(payload.body), [], payload.handles) if self._shared is not None else None
        self._wire = None if self._shared is not None else pack_reusable(payload)

    def wire_for(self, end: DriverEnd | None) -> Wire:
        """Return the wire to send to the actor with this end of shared memory."""
        if self._shared is None or end is None or not end.accepted:
            return self.wire()
        assert self._rest is not None
        return pack(self._rest, location=self._shared.location_for(end))

    def wire(self) -> Wire:
        """Return a wire for any actor."""
        if self._wire is None:
            self._wire = pack_reusable(self.payload())
        return self._wire

    def payload(self) -> Payload:
        """Return the value for the driver."""
        if self._shared is None:
            return unpack(fetch(self._wire))[-1]
        assert self._rest is not None
        return Payload(self._rest.body, self._shared.buffers(), self._rest.handles)
