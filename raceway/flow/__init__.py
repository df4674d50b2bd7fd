"""Flows: algorithms as streams over actors, in step or asynchronous.

for stats in create(actors, "sample").for_each(gradients).gather_async().for_each(apply_and_send_weights):
    print(stats)
"""

from raceway.engine.guests import Failures
from raceway.flow._iter import Iter, union, union_async
from raceway.flow._par import ParIter, create, send_msg
from raceway.flow._plan import Envelope, Shard, Source, StreamEnd
from raceway.flow._run import Run
from raceway.flow.tracing import Counters, Event
from raceway.given import given
from raceway.limits import RateLimit

__all__ = [
    "Counters", "Envelope", "Event", "Failures", "Iter", "ParIter", "RateLimit", "Run", "Shard", "Source", "StreamEnd",
    "create", "given", "send_msg", "union", "union_async",
]  # fmt: skip
