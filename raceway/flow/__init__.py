"""Flows: algorithms as streams over actors, synchronous or asynchronous.

for stats in create(actors, "sample").for_each(gradients).gather_async().for_each(apply_and_send_weights):
    print(stats)
"""

from __future__ import annotations

from typing import Any

from raceway.deprecations import warn_renamed
from raceway.flow._failures import Failures
from raceway.flow._graph import Envelope, NotReady, Shard, Source, StreamEnd
from raceway.flow._iter import Iter, union, union_async
from raceway.flow._par_iter import ParIter, create, send_msg, send_msg_to_all
from raceway.flow._run import Run
from raceway.flow._shared_streams import SharedStream
from raceway.flow.monitoring import Counters, Event
from raceway.flow.rate_limits import RateLimit
from raceway.injection import injected

__all__ = [
    "Counters", "Envelope", "Event", "Failures", "Iter", "NotReady", "ParIter", "RateLimit", "Run", "Shard",
    "SharedStream", "Source", "StreamEnd", "create", "injected", "send_msg", "send_msg_to_all", "union", "union_async",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "given":
        warn_renamed("raceway.flow.given", "raceway.flow.injected", "0.4")
        return injected
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
