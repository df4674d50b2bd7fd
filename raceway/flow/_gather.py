"""From many shards to one stream, in step or as items come."""

from __future__ import annotations

from collections import deque
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from raceway.engine.base import Actor
from raceway.errors import FlowError
from raceway.flow._graph import Envelope, Item, Node, Shard, Source, Word, detached
from raceway.flow._guests import Failures, Guest
from raceway.flow._operators import Stage
from raceway.flow._requests import Pulls
from raceway.flow._shard import RunningShard
from raceway.flow.counters import Figures, Meter

if TYPE_CHECKING:
    from raceway.flow._run import Run


class ShardPlan(NamedTuple):
    """A shard in the plan: where it runs, and the nodes that run there, the source first."""

    actor: Actor
    shard: Shard
    nodes: tuple[Node, ...]
    failures: Failures = Failures()
    moves: bool = False


class Lane(Guest):
    """The driver's end of one running shard."""

    def __init__(self, index: int, plan: ShardPlan, run: Run[Any], gather: int) -> None:
        super().__init__(plan.actor, f"{run.id}/{gather}/{index}", f"shard {index} of {plan.nodes[0]}", plan.failures)
        self.index, self.plan, self.gather, self.measure = index, plan, gather, run.measure
        self.moves, self.rereads = plan.moves, not plan.nodes[0].step.part.goes_on
        self.marks: list[int] = []  # how far the source, and what counts, had come with the last item
        self.state: Any = None  # what to begin from, until the first item has come
        self.reports: list[list[Figures]] = []  # counters of every life of the shard

    def begin(self) -> None:
        self.reports.append([])
        self.sources = (Source(self.index, self.actor.name, self.actor),)
        steps = [node.step for node in self.plan.nodes]
        settings = (steps, self.plan.shard, detached(self.sources[0]), self.measure, self.marks, detached(self.state))
        self.open(RunningShard, *settings, parts={str(node): node.step[2:] for node in self.plan.nodes})


class Gather(Stage):
    """What both gathers share: lanes, and what comes from them."""

    def __init__(self, run: Run[Any], node: Node, plans: list[ShardPlan], num_async: int = 1) -> None:
        self.meter = Meter(newest=run.newest_version)
        self.run, self.num_async, self.given, self.waiting = run, num_async, run.given, run.waiting
        self.lanes = [Lane(index, plan, run, run.numbers[node]) for index, plan in enumerate(plans)]
        self.busy = self.pulls = Pulls(self.lanes, run.news, lambda *one: run.happened(*one), type(self) is GatherSync)
        self.ready: deque[tuple[int, tuple[Any, Envelope]]] = deque()  # what has come, with the number of its lane
        self.opened = self.begun = False  # the shards, and asking them

    def open(self) -> None:
        """Start the shards, the first time."""
        for lane in [one for one in self.lanes if not (self.opened or one.ended)]:
            lane.begin()
        self.opened = True

    def take_in(self) -> None:
        """Look at what the shards have answered."""
        for lane, answer, num_bytes in () if self.pulls.closed else self.pulls.take_in():
            lane.state = None
            if len(answer) == 1:
                lane.ended, lane.reports[-1] = True, answer[0]
                continue
            value, told, lane.marks, lane.num_held, report = answer
            envelope = Envelope(lane.sources, *told)
            self.ready.append((lane.index, (value, envelope)))
            self.meter.items += 1
            self.meter.bytes += num_bytes
            if report is not None:
                lane.reports[-1] = report
            if self.run.observed:
                self.run.arrived(lane, envelope)

    def state(self) -> Any:
        self.open()  # what was put into an actor before anything was asked of it is part of its state
        futures = [lane.ask("state") if lane.reachable else None for lane in self.lanes]
        found = [future and future.result() for future in futures]
        return {
            "shards": [state or lane.state for state, lane in zip(found, self.lanes, strict=True)],
            "lanes": [(lane.ended, lane.dropped, lane.marks) for lane in self.lanes],
            "ready": self.ready if self.run.keeps_in_flight else deque(),
        }

    def restore(self, state: Any) -> None:
        if len(state["lanes"]) != len(self.lanes):
            raise FlowError(f"the state is of {len(state['lanes'])} shards, the flow has {len(self.lanes)}")
        self.ready = state["ready"]
        for lane, shard, saved in zip(self.lanes, state["shards"], state["lanes"], strict=True):
            lane.state, (lane.ended, lane.dropped, lane.marks) = shard, saved
        self.open()

    def close(self) -> None:
        for lane in self.lanes if self.opened and not self.pulls.closed else ():
            lane.close()
        self.pulls.closed = True
        self.poll = lambda: Word.END  # type: ignore[method-assign]


class GatherSync(Gather):
    """Rounds of one item of every shard, in shard order. A round begins when it is asked for: that is the barrier."""

    def poll(self) -> Item | Word:
        if not self.begun:
            self.open()
            self.begun = True
            there = [index for index, _ in self.ready]
            for lane in [one for one in self.lanes if not one.ended and one.index not in there]:
                self.pulls.ask(lane)
        self.take_in()
        if self.pulls.num_out:
            self.waiting.append(self.meter)
            return Word.PENDING
        self.begun = False
        if not self.ready:
            return Word.END
        items = sorted(self.ready, key=itemgetter(0))
        self.ready.clear()
        for _, (_, seal) in items:
            self.meter.saw(seal)
        return [value for _, (value, _) in items], tuple([seal for _, (_, seal) in items])


class GatherAsync(Gather):
    """Items as they come, at most so many asked of a shard: the next when the driver is back, having dealt with one."""

    def poll(self) -> Item | Word:
        if not self.begun:
            self.open()
            self.begun = True
            there = [index for index, _ in self.ready]
            wanted = [(one, self.num_async - there.count(one.index)) for one in self.lanes]
            self.given += [(self.pulls, lane) for lane, count in wanted for _ in range(count)]
        self.given.ask()  # also of other gathers: no shard waits for its gather's turn in a union
        if self.pulls.arrivals:
            self.take_in()
        if self.ready:
            index, (value, seal) = self.ready.popleft()
            self.meter.saw(seal)
            self.given.append((self.pulls, self.lanes[index]))
            return value, seal
        if not self.pulls.num_out:
            return Word.END
        self.waiting.append(self.meter)
        return Word.PENDING
