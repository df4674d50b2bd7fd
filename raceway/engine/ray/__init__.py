"""The ray engine: actors on a Ray cluster, or on a local Ray that it starts.

engine.py         RayEngine: starts, calls and ends actors
cluster.py        starting or joining Ray, and its resources
joining.py        errors of joining a cluster, found by probe.py before Ray itself tries
wire.py           packing and unpacking values for Ray
actor_host.py     what runs inside a Ray actor
mailbox.py        requests from actors to the driver, and noticing dead actors
completions.py    whether a waiting thread asks Ray for a result, or Ray notifies the engine
modules.py        shipping the user's modules
memory_sharing.py shared memory between the driver and the actors on its node
private_api.py    every use of Ray's private API, each with a fallback
"""

from __future__ import annotations

from typing import Any

try:
    import ray as _ray
except ImportError:
    _ray = None  # type: ignore[assignment]

ray: Any = _ray
"""The Ray package, or None if it is not installed. Untyped: Ray's own types cover too little."""
