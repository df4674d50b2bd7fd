"""The frames between a driver and its worker processes.

    header, 20 bytes: length of the rest, kind, flags, number of buffers, extra, id
    if there are buffers: index and offset of the block of shared memory that holds them, and their lengths
    if there are handles: their number and ids
    the pickle, unless it is large: then it is the last buffer

Frames are always small, so reading one never takes long, and a worker that stops in the middle of one does
not hold up the driver.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from raceway.engine._codec import Payload
from raceway.engine._reference_counts import Handle
from raceway.engine.shared_memory.arena import Arena, ArenaBlock, Pin
from raceway.engine.shared_memory.arena_reader import ArenaReader

# From the driver: construct the actor; run a call; keep a stored value; drop it; the reply to a request, or its error.
CONSTRUCT, CALL, STORED_VALUE, DROP_VALUE, REPLY, REPLY_ERROR = range(1, 7)
# From a worker: the constructor returned, or raised; a call returned, or raised; a request; handles were dropped; calls
# that have not started are returned; store a value.
READY, START_FAILED, RESULT, CALL_FAILED, REQUEST, RELEASE_HANDLES, RETURN_CALLS, PUT = range(11, 19)

Frame = tuple[int, int, int, Payload]
"""Kind, id, extra and payload."""

_HEADER = struct.Struct("<IBBHIQ")
_unpack_header = _HEADER.unpack_from
_BLOCK = struct.Struct("<IQ")
_HANDLES, _LARGE_BODY = 1, 2  # flags
_MAX_BODY_BYTES = 128 * 1024  # a larger pickle goes to shared memory, so that frames stay small

EMPTY = Payload(b"", [])


class PackedPayload:
    """A payload that can be sent any number of times. It keeps the block of shared memory that holds its large parts.

    Attributes:
        block: the block of shared memory, or None.
        handle_ids: the ids of its handles, or None.
    """

    __slots__ = ("_flags", "_keep", "_num_buffers", "_tail", "block", "handle_ids")

    block: ArenaBlock | None
    handle_ids: list[int] | None
    _keep: Any
    _tail: bytes

    def __init__(self, payload: Payload, arena: Arena) -> None:
        body, buffers = payload.body, payload.buffers
        if not buffers and payload.handles is None and len(body) <= _MAX_BODY_BYTES:
            self._flags = self._num_buffers = 0
            self.block = self.handle_ids = self._keep = None
            self._tail = bytes(body)
            return
        self._flags = 0
        self.block = None
        self._keep = payload.handles
        self.handle_ids = [handle.id for handle in payload.handles] if payload.handles else None
        if len(body) > _MAX_BODY_BYTES:
            buffers, body = [*buffers, body], b""
            self._flags |= _LARGE_BODY
        self._num_buffers = len(buffers)
        tail = bytes(body)
        if self.handle_ids:
            self._flags |= _HANDLES
            tail = struct.pack(f"<H{len(self.handle_ids)}Q", len(self.handle_ids), *self.handle_ids) + tail
        if buffers:
            self.block, lengths = arena.write(buffers)
            self._keep = (Pin(self.block), payload.handles)
            tail = _BLOCK.pack(self.block.index, self.block.offset) + struct.pack(f"<{len(lengths)}Q", *lengths) + tail
        self._tail = tail

    def frame(self, kind: int, id: int, extra: int = 0) -> bytes:
        """Return a frame that carries the payload."""
        return _HEADER.pack(len(self._tail), kind, self._flags, self._num_buffers, extra, id) + self._tail


def bare_frame(kind: int, id: int, body: bytes = b"", extra: int = 0) -> bytes:
    """Return a frame that carries a few bytes instead of a payload."""
    return _HEADER.pack(len(body), kind, 0, 0, extra, id) + body


class FrameDecoder:
    """Splits a stream of bytes into frames, and reads their buffers from shared memory.

    Args:
        reader: reads the sender's arena.
        make_handles: counts and returns the handles of these ids.
    """

    def __init__(self, reader: ArenaReader, make_handles: Callable[[tuple[int, ...]], list[Handle]]) -> None:
        self._reader = reader
        self._make_handles = make_handles
        self._incomplete = b""

    def feed(self, data: bytes) -> list[Frame]:
        """Add received bytes, and return every frame that is complete now."""
        if self._incomplete:
            data = self._incomplete + data
            self._incomplete = b""
        frames = []
        position, end = 0, len(data)
        while end - position >= 20:
            length, kind, flags, num_buffers, extra, id = _unpack_header(data, position)
            start, stop = position + 20, position + 20 + length
            if stop > end:
                break
            position = stop
            tail = data[start:stop]
            frames.append(
                (kind, id, extra, self._unpack(tail, flags, num_buffers) if num_buffers or flags else Payload(tail, []))
            )
        if position < end:
            self._incomplete = data[position:]
        return frames

    def _unpack(self, tail: bytes, flags: int, num_buffers: int) -> Payload:
        position = 0
        buffers: list[Any] = []
        handles = None
        if num_buffers:
            index, offset = _BLOCK.unpack_from(tail)
            lengths = list(struct.unpack_from(f"<{num_buffers}Q", tail, _BLOCK.size))
            position = _BLOCK.size + 8 * num_buffers
            buffers = self._reader.read(index, offset, lengths)
        if flags & _HANDLES:
            (count,) = struct.unpack_from("<H", tail, position)
            handles = self._make_handles(struct.unpack_from(f"<{count}Q", tail, position + 2))
            position += 2 + 8 * count
        body: Any = buffers.pop() if flags & _LARGE_BODY else tail[position:]
        return Payload(body, buffers, handles)
