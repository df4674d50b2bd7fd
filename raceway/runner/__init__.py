"""The Runner: functions, classes and objects of a program run by workers, with futures for their results.

with Runner("rl") as rr:
    collector = rr.service(collect_episode)
    weights = rr.put_object(policy.state_dict())
    episodes = rr.get([collector(weights) for _ in range(100)])
"""

from __future__ import annotations

from typing import Any

from raceway.runner._client import Client
from raceway.runner._future import Future
from raceway.runner._hub import find_object_hub
from raceway.runner._objects import Deserializer, ObjectRef
from raceway.runner._runner import Runner, Service

__all__ = ["Future", "ObjectRef", "Runner", "Service", "get_object", "patch_object", "update_object"]


def get_object(ref: ObjectRef, deserializer: Deserializer | None = None) -> Any:
    """Read an object where no Runner is at hand, as in a worker; see `Runner.get_object`."""
    return _hub(ref).read(ref, deserializer)


def update_object(ref: ObjectRef, value: Any) -> ObjectRef:
    """Replace an object where no Runner is at hand; see `Runner.update_object`."""
    hub = _hub(ref)
    return hub.update(ref, hub.put(value))  # type: ignore[no-any-return]


def patch_object(ref: ObjectRef, patch: Any, size: float = 1) -> ObjectRef:
    """Append to an object where no Runner is at hand; see `Runner.patch_object`."""
    hub = _hub(ref)
    return hub.patch(ref, hub.put(patch), size)  # type: ignore[no-any-return]


def _hub(ref: ObjectRef) -> Any:
    return find_object_hub(ref) or Client()
