"""The frames between a driver and its worker processes.

    header 20 bytes: length of the rest, kind, flags, number of buffers, extra, id
    if there are buffers: the slot (index, offset) that holds them, and their lengths
    if it carries handles: their number and ids
    the pickle, unless it was large: then it is the last buffer

Frames are small whatever they carry, so reading one never waits long and a worker stopped in the middle of one costs
the driver nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from raceway.engine._codec import Payload
from raceway.engine._handles import Handle
from raceway.engine._shared_memory import Arena, ArenaView, Pin, Slot

# From the driver: make the actor; run this; keep this value; drop it; the answer to a request, or what it raised.
MAKE, CALL, OBJECT, DROP, ANSWER, REFUSAL = range(1, 7)
# From a worker: the constructor returned / failed; a call returned / failed; a request; handles let go; calls given
# back; store this value.
READY, UNREADY, RESULT, FAILURE, REQUEST, RELEASE, GIVEN_BACK, PUT = range(11, 19)

HEADER = struct.Struct("<IBBHIQ")
_unpack = HEADER.unpack_from
_SLOT = struct.Struct("<IQ")
_HANDLES, _LARGE_BODY = 1, 2
_MOST_BODY = 128 * 1024  # a larger pickle travels in the slot, so that frames stay small

EMPTY = Payload(b"", [])


class Parcel:
    """A payload ready to be sent any number of times: what is large lies in a slot, which stays while this does."""

    __slots__ = ("flags", "handle_ids", "keep", "num_buffers", "slot", "tail")

    slot: Slot | None
    handle_ids: list[int] | None
    keep: Any
    tail: bytes

    def __init__(self, payload: Payload, arena: Arena) -> None:
        body, buffers = payload.body, payload.buffers
        if not buffers and payload.handles is None and len(body) <= _MOST_BODY:
            self.flags = self.num_buffers = 0
            self.slot = self.handle_ids = self.keep = None
            self.tail = bytes(body)
            return
        self.flags = 0
        self.slot = None
        self.keep = payload.handles
        self.handle_ids = [handle.id for handle in payload.handles] if payload.handles else None
        if len(body) > _MOST_BODY:
            buffers, body = [*buffers, body], b""
            self.flags |= _LARGE_BODY
        self.num_buffers = len(buffers)
        tail = bytes(body)
        if self.handle_ids:
            self.flags |= _HANDLES
            tail = struct.pack(f"<H{len(self.handle_ids)}Q", len(self.handle_ids), *self.handle_ids) + tail
        if buffers:
            self.slot, lengths = arena.write(buffers)
            self.keep = (Pin(self.slot), payload.handles)
            tail = _SLOT.pack(self.slot.index, self.slot.offset) + struct.pack(f"<{len(lengths)}Q", *lengths) + tail
        self.tail = tail

    def frame(self, kind: int, id: int, extra: int = 0) -> bytes:
        return HEADER.pack(len(self.tail), kind, self.flags, self.num_buffers, extra, id) + self.tail


def bare_frame(kind: int, id: int, body: bytes = b"", extra: int = 0) -> bytes:
    """Return a frame with nothing but a few bytes in it."""
    return HEADER.pack(len(body), kind, 0, 0, extra, id) + body


class Inbox:
    """Cuts a stream of bytes into frames, and reads what lies in shared memory."""

    def __init__(self, view: ArenaView, claim: Callable[[tuple[int, ...]], list[Handle]]) -> None:
        self._view = view
        self._claim = claim
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, int, int, Payload]]:
        """Return (kind, id, extra, payload) of every frame that is complete now."""
        if self._rest:
            data = self._rest + data
            self._rest = b""
        frames = []
        at, end = 0, len(data)
        while end - at >= 20:
            length, kind, flags, num_buffers, extra, id = _unpack(data, at)
            start, stop = at + 20, at + 20 + length
            if stop > end:
                break
            at = stop
            tail = data[start:stop]
            frames.append(
                (kind, id, extra, self._open(tail, flags, num_buffers) if num_buffers or flags else Payload(tail, []))
            )
        if at < end:
            self._rest = data[at:]
        return frames

    def _open(self, tail: bytes, flags: int, num_buffers: int) -> Payload:
        at = 0
        buffers: list[Any] = []
        handles = None
        if num_buffers:
            index, offset = _SLOT.unpack_from(tail)
            lengths = list(struct.unpack_from(f"<{num_buffers}Q", tail, _SLOT.size))
            at = _SLOT.size + 8 * num_buffers
            buffers = self._view.read(index, offset, lengths)
        if flags & _HANDLES:
            (count,) = struct.unpack_from("<H", tail, at)
            handles = self._claim(struct.unpack_from(f"<{count}Q", tail, at + 2))
            at += 2 + 8 * count
        body: Any = buffers.pop() if flags & _LARGE_BODY else tail[at:]
        return Payload(body, buffers, handles)
