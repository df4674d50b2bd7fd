"""The objects of a Runner, as the driver keeps them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Ref, encode
from raceway.errors import ForeignReference, ObjectFreed
from raceway.runner._objects import (
    CachedObject,
    Deserializer,
    ObjectRef,
    StoredObject,
    not_an_object_ref,
    object_value,
)
from raceway.runner._open_runners import open_backends

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend
    from raceway.runner._future import ServiceFuture


class ObjectStore:
    """The objects of one Runner.

    Args:
        backend: the Runner's backend.
    """

    def __init__(self, backend: DriverBackend) -> None:
        self.stored: dict[int, StoredObject] = {}
        """The objects by the id of their reference."""
        self._backend = backend
        self._engine = backend.engine
        self._table = backend.table

    def put(self, value: Any) -> Ref:
        """Store a value."""
        self._backend.check_open()
        return self._engine.put(value)

    def create(self, base: Ref, max_size: float) -> ObjectRef:
        """Create an object from a stored value."""
        with self._engine.lock:
            self._backend.check_open()
            ref = ObjectRef(self._table, self._table.new_id(self._free))
            self.stored[ref.id] = StoredObject(base, max_size)
            return ref

    def create_from_result(self, future: ServiceFuture[Any]) -> ObjectRef:
        """Create an object from the result of a future that is done, or raise its exception."""
        with self._engine.lock:
            self._backend.check_open()
            payload = future.payload()
            base = self._engine.store(payload if payload is not None else encode(future.result()))
            return self.create(base, math.inf)

    def rebuild(self, id: int) -> ObjectRef:
        """Return a reference to the object with this id, or raise ObjectFreed."""
        with self._engine.lock:
            if id not in self.stored:
                raise ObjectFreed(f"the Runner {self._backend.name!r} has no object {id}, or it has been freed")
            return ObjectRef(self._table, id)

    def _free(self, id: int) -> None:
        self.stored.pop(id, None)

    def find(self, ref: ObjectRef) -> StoredObject:
        """Return the object of a reference, or raise if there is none."""
        if not isinstance(ref, ObjectRef):
            raise not_an_object_ref(ref)
        stored = self.stored.get(ref.id) if ref.table is self._table else None
        if stored is None:
            self._backend.check_open()
            if ref.table is self._table and not any(
                ref.id in backend.objects.stored for backend in open_backends.values()
            ):
                raise ObjectFreed(f"{ref!r} has been freed")
            raise ForeignReference(f"{ref!r} belongs to another Runner, not to {self._backend.name!r}")
        return stored

    def read(self, ref: ObjectRef, deserializer: Deserializer | None) -> Any:
        """Return the latest state of an object."""
        with self._engine.lock:
            stored = self.find(ref)
            base = stored.base if deserializer is None and not stored.patches else None
        return base.get() if base is not None else object_value(ref, self.fetch(ref), deserializer)

    def fetch(self, ref: ObjectRef) -> CachedObject:
        """Update this process's copy of an object, and return a snapshot of it."""
        with self._engine.lock:
            stored = self.find(ref)
            cached: CachedObject = self._table.cache.setdefault(ref.id, CachedObject())
            cached.apply(ref, stored.delta(cached.epoch, cached.num_seen))
            return cached.snapshot()

    def update(self, ref: ObjectRef, base: Ref) -> ObjectRef:
        """Replace an object."""
        with self._engine.lock:
            self.find(ref).replace(base)
        return ref

    def patch(self, ref: ObjectRef, patch: Ref, size: float) -> ObjectRef:
        """Append to an object."""
        with self._engine.lock:
            self.find(ref).append(patch, size)
        return ref

    def replace_folded(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace the base and the patches that were folded into the new one; return False if the epoch has changed."""
        with self._engine.lock:
            stored = self.find(ref)
            if stored.epoch != epoch:
                return False
            stored.replace(base, num_folded)
            return True
