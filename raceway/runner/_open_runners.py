"""The open Runners of this process, to resolve references that return from workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend
    from raceway.runner._future import ServiceFuture
    from raceway.runner._objects import ObjectRef

open_backends: dict[str, DriverBackend] = {}
"""The Runners that this process has opened and not closed, by run id."""


def find_backend(run_id: str) -> DriverBackend | None:
    """Return the backend of a run, or None if this process is not its driver."""
    return open_backends.get(run_id)


def find_future(uid: str, id: int) -> ServiceFuture[Any] | None:
    """Return the future with this id on the engine `uid`, or None if this process is not its driver."""
    for backend in tuple(open_backends.values()):  # other threads may open and close Runners
        if backend.engine.uid == uid and id in backend.futures:
            return backend.futures[id]
    return None


def find_object_owner(ref: ObjectRef) -> DriverBackend | None:
    """Return the backend that an object belongs to, or None if this process is not its driver."""
    for backend in tuple(open_backends.values()):  # other threads may open and close Runners
        if ref.table is backend.table and ref.id in backend.objects.stored:
            return backend
    return None
