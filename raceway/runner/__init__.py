"""The Runner: runs the functions, classes and objects of a program on workers, with futures for their results.

with Runner("rl") as rr:
    collector = rr.service(collect_episode)
    weights = rr.put_object(policy.state_dict())
    episodes = rr.get([collector(weights) for _ in range(100)])
"""

from __future__ import annotations

from typing import Any

from raceway.deprecations import warn_renamed
from raceway.runner._future import ServiceFuture
from raceway.runner._history import CallRecord
from raceway.runner._objects import Deserializer, ObjectRef
from raceway.runner._open_runners import find_object_owner
from raceway.runner._runner import Runner
from raceway.runner._service import Service
from raceway.runner._worker_backend import WorkerBackend

__all__ = [
    "CallRecord",
    "ObjectRef",
    "Runner",
    "Service",
    "ServiceFuture",
    "get_object",
    "patch_object",
    "update_object",
]


def __getattr__(name: str) -> Any:
    if name == "Future":
        warn_renamed("raceway.runner.Future", "raceway.runner.ServiceFuture", "0.4")
        return ServiceFuture
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def get_object(ref: ObjectRef, deserializer: Deserializer | None = None) -> Any:
    """Read an object where there is no Runner, as in a worker; see `Runner.get_object`."""
    return _objects_of(ref).read(ref, deserializer)


def update_object(ref: ObjectRef, value: Any) -> ObjectRef:
    """Replace an object where there is no Runner; see `Runner.update_object`."""
    objects = _objects_of(ref)
    return objects.update(ref, objects.put(value))  # type: ignore[no-any-return]


def patch_object(ref: ObjectRef, patch: Any, size: float = 1) -> ObjectRef:
    """Append to an object where there is no Runner; see `Runner.patch_object`."""
    objects = _objects_of(ref)
    return objects.patch(ref, objects.put(patch), size)  # type: ignore[no-any-return]


def _objects_of(ref: ObjectRef) -> Any:
    backend = find_object_owner(ref) or WorkerBackend()
    return backend.objects
