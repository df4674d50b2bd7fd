"""Values that the driver stores for many readers."""

from __future__ import annotations

from typing import Any

from raceway.engine import _codec
from raceway.engine._calls import copy_buffers
from raceway.engine._codec import Payload
from raceway.engine._reference_counts import DriverHandles
from raceway.engine.base import Future, Ref
from raceway.errors import ObjectFreed


class ValueStore:
    """The stored values of an engine, each kept as long as any process refers to it.

    An engine overrides `_to_stored` to put them where its actors can read them.
    """

    def __init__(self, uid: str, lock: Any) -> None:
        self.lock = lock
        self.handles = DriverHandles(uid)
        self.handles.read = self._read
        self._stored: dict[int, Payload | None] = {}  # None: reserved, not filled yet

    def put(self, value: object) -> Ref:
        """Store a value once for many readers."""
        payload = _codec.encode(value)
        with self.lock:
            self._check_open()
            return self.store(payload)

    def store(self, payload: Payload | None) -> Ref:
        """Store an encoded value; None reserves a reference for `fill`. Called with the lock."""
        self.handles.sweep()
        ref = Ref(self.handles, self.handles.new_id(self._discard))
        self._stored[ref.id] = None
        if payload is not None:
            self.fill(ref, payload)
        return ref

    def fill(self, ref: Ref, payload: Payload) -> None:
        """Set the value of a reserved reference. Called with the lock."""
        self._stored[ref.id] = self._to_stored(payload)

    def get(self, source: Ref | Future[Any], timeout: float | None = None) -> Any:
        """Read a reference or wait for a future."""
        return source.result(timeout) if isinstance(source, Future) else source.get()

    def decode(self, payload: Payload) -> Any:
        """Decode a value that has arrived."""
        return _codec.decode(payload)

    def _to_stored(self, payload: Payload) -> Payload:
        """Return the payload in memory that lasts as long as it is stored."""
        return copy_buffers(payload)

    def _discard(self, id: int) -> None:
        """Free a stored value that no process refers to."""
        self._stored.pop(id, None)

    def stored_payload(self, id: int) -> Payload:
        """Return a stored value as it was stored, or raise ObjectFreed. Called with the lock."""
        payload = self._stored.get(id)
        if payload is None:
            raise ObjectFreed(f"reference {id} is not stored here any more")
        return payload

    def _read(self, id: int) -> Any:
        with self.lock:
            payload = self.stored_payload(id)
        return self.decode(payload)

    def _check_open(self) -> None:
        """Raise EngineClosed if the engine is closed."""
        raise NotImplementedError
