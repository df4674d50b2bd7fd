"""Flows: algorithms as streams over actors, in step or asynchronous.

rollouts = create(actors, "sample")
flow = rollouts.for_each(gradients).gather_async().for_each(apply).for_each(update_weights)
for stats in flow:
    print(stats)
"""

from raceway.engine.guests import Failures
from raceway.flow._graph import given
from raceway.flow._items import Envelope, Shard, Source, StreamEnd
from raceway.flow._iter import Iter, union, union_async
from raceway.flow._join import RateLimit
from raceway.flow._par import ParIter, create, send_msg
from raceway.flow._run import Run
from raceway.flow.tracing import Counters, Event

__all__ = [
    "Counters", "Envelope", "Event", "Failures", "Iter", "ParIter", "RateLimit", "Run", "Shard", "Source", "StreamEnd",
    "create", "given", "send_msg", "union", "union_async",
]  # fmt: skip
