"""From many shards to one stream: synchronous rounds, or items in order of completion."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from raceway.engine.base import Actor
from raceway.errors import FlowError
from raceway.flow._failures import Failures
from raceway.flow._graph import Envelope, Item, Node, NoItem, Shard, Source, replace_actor_handles
from raceway.flow._hosted_objects import Guest
from raceway.flow._operators import Stage
from raceway.flow._repartition import FedSource
from raceway.flow._requests import ItemRequester
from raceway.flow._shard import RunningShard
from raceway.flow.monitoring import CounterValues, Meter

if TYPE_CHECKING:
    from raceway.flow._run import Run


class ShardSpec(NamedTuple):
    """A shard of a plan: its actor, and the nodes that run there, the source first."""

    actor: Actor
    shard: Shard
    nodes: tuple[Node, ...]
    failures: Failures = Failures()
    movable: bool = False


class ShardGuest(Guest):
    """The driver's handle to one running shard."""

    def __init__(self, index: int, spec: ShardSpec, run: Run[Any], gather: int) -> None:
        super().__init__(spec.actor, f"{run.id}/{gather}/{index}", f"shard {index} of {spec.nodes[0]}", spec.failures)
        self.index, self.spec, self.gather, self.measure = index, spec, gather, run.measure
        is_bound = any(node.spec.implementation.binds_shard for node in spec.nodes[1:])
        self.hosts = spec.nodes[0].actors if spec.movable and not is_bound else ()
        self.regenerates_lost_items = spec.movable or not spec.nodes[0].spec.implementation.keeps_position
        self.positions: list[int] = []  # of the source and of `take` operators, after the last item received
        self.state: Any = None  # to restore, until the first item has arrived
        self.reports: list[list[CounterValues]] = []  # counters of every incarnation of the shard

    def start(self) -> None:
        if self.feeder is not None:
            self.feeder.rewind(self)
        self.reports.append([])
        self.sources = (Source(self.index, self.actor.name, self.actor),)
        shard, nodes = self.spec.shard, self.spec.nodes
        specs = [node.spec for node in nodes]
        specs[0] = specs[0]._replace(implementation=specs[0].implementation.for_shard(shard))
        source, state = replace_actor_handles(self.sources[0]), replace_actor_handles(self.state)
        args = (specs, shard, source, self.measure, self.positions, state)
        parts = {str(node): spec[2:] for node, spec in zip(nodes, specs, strict=True)}
        self.open(RunningShard, *args, parts=parts)


class Gather(Stage):
    """Base of both gathers: holds the shards and receives their items."""

    def __init__(self, run: Run[Any], node: Node, specs: list[ShardSpec], num_async: int = 1) -> None:
        self.meter = Meter(newest=run.newest_version)
        self.run, self.num_async, self.waiting = run, num_async, run.waiting
        self.pending_requests = run.pending_requests
        self.shards = [ShardGuest(index, spec, run, run.node_indices[node]) for index, spec in enumerate(specs)]
        sources = dict.fromkeys(spec.nodes[0] for spec in specs)
        self.feeders = {node: run.stage(node) for node in sources if isinstance(node.spec.implementation, FedSource)}
        for shard in [shard for shard in self.shards if shard.spec.nodes[0] in self.feeders]:
            shard.feeder = self.feeders[shard.spec.nodes[0]]
            shard.feeder.register(shard)
        self.in_flight = self.requester = ItemRequester(
            self.shards,
            run.wakeups,
            lambda *failure: run.report_failure(*failure),
            num_async=num_async,
            synchronous=type(self) is GatherSync,
        )
        self.ready: deque[tuple[int, tuple[Any, Envelope]]] = deque()  # items received, with the index of their shard
        self.not_ready: list[ShardGuest] = []  # shards that had no item yet, and are to be asked again
        self.opened = False
        self.requested = False  # in GatherSync, the current round; in GatherAsync, the first items

    def open(self) -> None:
        """Start the shards, on the first call."""
        for shard in [shard for shard in self.shards if not (self.opened or shard.ended)]:
            shard.start()
        self.opened = True

    def receive(self) -> None:
        """Receive the answers of the shards that have arrived."""
        for shard, answer, num_bytes in () if self.requester.closed else self.requester.receive():
            shard.state = None
            if len(answer) == 1:
                shard.ended, shard.reports[-1] = True, answer[0]
                continue
            if len(answer) == 2:
                shard.positions, shard.num_held = answer
                if shard.feeder is not None:
                    self.requester.request(shard)
                else:
                    self.not_ready.append(shard)
                continue
            value, envelope_fields, shard.positions, shard.num_held, report = answer
            envelope = Envelope(shard.sources, *envelope_fields)
            self.ready.append((shard.index, (value, envelope)))
            self.meter.items += 1
            self.meter.bytes += num_bytes
            if report is not None:
                shard.reports[-1] = report
            if self.run.has_subscribers:
                self.run.record_arrival(shard, envelope)

    def ask_again(self) -> None:
        """Request an item from the shards that had none yet. Not in `receive`, or a run could never be drained."""
        shards, self.not_ready = self.not_ready, []
        for shard in [shard for shard in shards if not shard.ended]:
            self.requester.request(shard)

    def feed(self) -> None:
        """Feed the shards that need it."""
        for feeder in self.feeders.values():
            feeder.serve()

    def state(self) -> Any:
        states: list[Any] = [None] * len(self.shards)
        if not self.requester.closed:
            self.open()  # the actors have a state even before the first request
            states = self.requester.call_all("state")
        return {
            "shards": [state or shard.state for state, shard in zip(states, self.shards, strict=True)],
            "progress": [(shard.ended, shard.dropped, shard.positions) for shard in self.shards],
            "ready": self.ready if self.run.keeps_in_flight else deque(),
        }

    def restore(self, state: Any) -> None:
        if len(state["progress"]) != len(self.shards):
            raise FlowError(f"the state has {len(state['progress'])} shards, but the flow has {len(self.shards)}")
        self.ready = state["ready"]
        for shard, shard_state, progress in zip(self.shards, state["shards"], state["progress"], strict=True):
            shard.state, (shard.ended, shard.dropped, shard.positions) = shard_state, progress
        self.open()

    def close(self) -> None:
        for shard in self.shards if self.opened and not self.requester.closed else ():
            shard.close()
        self.requester.closed = True
        for feeder in self.feeders.values():
            feeder.close()
        self.poll = lambda: NoItem.END  # type: ignore[method-assign]


class GatherSync(Gather):
    """Rounds of one item per shard, in shard order. A round starts only when it is polled, which makes it a barrier."""

    def poll(self) -> Item | NoItem:
        if not self.requested:
            self.open()
            self.requested = True
            already_ready = [index for index, _ in self.ready]
            for shard in [shard for shard in self.shards if not shard.ended and shard.index not in already_ready]:
                self.requester.request(shard)
        self.receive()
        self.ask_again()
        if self.requester.num_outstanding:
            self.feed()
            self.waiting.append(self.meter)
            return NoItem.PENDING
        self.requested = False
        if not self.ready:
            return NoItem.END
        items = sorted(self.ready, key=itemgetter(0))
        self.ready.clear()
        for _, (_, envelope) in items:
            self.meter.count_lag(envelope)
        return [value for _, (value, _) in items], tuple([envelope for _, (_, envelope) in items])


class GatherAsync(Gather):
    """Items in order of completion, at most `num_async` outstanding per shard.

    The request for a shard's next item is sent when the driver polls again, after it has used the last one.
    """

    def poll(self) -> Item | NoItem:
        if not self.requested:
            self.open()
            self.requested = True
            already_ready = [index for index, _ in self.ready]
            missing = [(shard, self.num_async - already_ready.count(shard.index)) for shard in self.shards]
            self.pending_requests += [(self.requester, shard) for shard, count in missing for _ in range(count)]
        self.pending_requests.send()  # of other gathers too: no shard waits for its gather's turn in a union
        if self.requester.arrivals:
            self.receive()
        if self.not_ready:
            self.ask_again()
        if self.ready:
            index, (value, envelope) = self.ready.popleft()
            self.meter.count_lag(envelope)
            self.pending_requests.append((self.requester, self.shards[index]))
            return value, envelope
        if not self.requester.num_outstanding:
            return NoItem.END
        self.feed()
        self.waiting.append(self.meter)
        return NoItem.PENDING
