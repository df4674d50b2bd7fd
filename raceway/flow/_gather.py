"""From many shards to one stream, in step or as items come."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from raceway.engine.base import Actor, Future
from raceway.engine.guests import Failures, Guest
from raceway.errors import FlowError, SerializationError
from raceway.flow._graph import Node
from raceway.flow._items import Envelope, Item, Shard, Source, Word, detached, merge
from raceway.flow._ops import Stage
from raceway.flow._shard import RunningShard, Spec
from raceway.flow.tracing import Figures, Meter

if TYPE_CHECKING:
    from raceway.flow._run import Run


class ShardPlan(NamedTuple):
    """A shard in the plan: where it runs, and the nodes that run there, the source first."""

    actor: Actor
    shard: Shard
    nodes: tuple[Node, ...]
    failures: Failures = Failures()


class Lane(Guest):
    """The driver's end of one running shard."""

    def __init__(self, index: int, plan: ShardPlan, run: str, gather: int) -> None:
        super().__init__(plan.actor, f"{run}/{gather}/{index}", f"shard {index} of {plan.nodes[0]}", plan.failures)
        self.index = index
        self.gather = gather
        self.plan = plan
        self.sources = (Source(index, plan.actor.name, plan.actor),)
        self.out: deque[Future[Any]] = deque()
        """Requests whose answers have not been taken in, in order."""
        self.ended = False
        self.position = self.num_held = 0
        self.reports: list[list[Figures]] = [[]]
        """Counters of every life of the shard."""

    def begin(self, measure: bool, state: Any = None) -> None:
        """Make the shard in its actor."""
        source = Source(self.index, self.actor.name)
        steps = [node.step for node in self.plan.nodes]
        spec = Spec(self.plan.shard, source, steps, measure, self.position, detached(state))
        try:
            self.open(RunningShard, (spec,), "pull")
        except SerializationError:
            for node in self.plan.nodes:
                try:
                    self.engine.message("", (node.step.part, node.step.settings))
                except SerializationError as error:
                    raise FlowError(f"{node} cannot be sent to {self.actor.name}: {error}") from error
            raise


class Gather(Stage):
    """What both gathers share: asking shards, and taking in what they answer."""

    _in_step = False

    def __init__(self, run: Run[Any], node: Node, plans: list[ShardPlan], num_async: int = 1) -> None:
        self.meter = Meter(newest=run.newest_version)
        self.lanes = [Lane(index, plan, run.id, run.numbers[node]) for index, plan in enumerate(plans)]
        self._run = run
        self._num_async = num_async
        self._num_out = 0
        self._arrivals: deque[tuple[Lane, Future[Any], int]] = deque()
        self._callbacks = [self._callback(lane) for lane in self.lanes]
        self._ready: deque[tuple[int, Item]] = deque()  # taken in, with the number of the lane
        self._opened = self._closed = False
        self._states: list[Any] = [None] * len(plans)

    def poll(self) -> Item | Word:
        if self._closed:
            return Word.END
        if not self._opened:
            self._opened = True
            for lane, state in zip(self.lanes, self._states, strict=True):
                if not lane.ended:
                    lane.begin(self._run.measure, state)
        answer = self.next()
        if not isinstance(answer, Word) and answer[1].version is not None:
            self.meter.saw(answer[1])
        return answer

    def next(self) -> Item | Word:
        """Return what `poll` should."""
        raise NotImplementedError

    def _ask(self, lane: Lane) -> None:
        """Ask a shard for an item."""
        future = lane.repeat()
        lane.out.append(future)
        self._num_out += 1
        future.add_done_callback(self._callbacks[lane.index])

    def _callback(self, lane: Lane) -> Callable[[Future[Any]], None]:
        arrivals, news, wake = self._arrivals, self._run.news, self._run.waker(lane.actor)

        def arrived(future: Future[Any]) -> None:
            payload = future.payload()
            arrivals.append((lane, future, payload.size if payload is not None else 0))
            if self._in_step and payload is not None and len(arrivals) < self._num_out:
                future.decode()  # while the others of the round are under way
                return
            news.append(lane)
            if wake is not None:
                wake(future)

        return arrived

    def _take_in(self) -> None:
        """Look at what the shards have answered."""
        while self._arrivals:
            lane, future, num_bytes = self._arrivals.popleft()
            if not lane.out or lane.out[0] is not future:
                continue  # of a life that was given up
            answer = lane.answer(future)
            if isinstance(answer, BaseException):
                self._failed(lane, answer)
                continue
            lane.out.popleft()
            self._num_out -= 1
            if answer[-1] is not None:
                lane.reports[-1] = answer[-1]
            lane.ended = len(answer) == 1
            if not lane.ended:
                value, sequence, version, begun, done, size, lane.position, lane.num_held, _ = answer
                envelope = Envelope(lane.sources, sequence, version, begun, done, size)
                self._ready.append((lane.index, (value, envelope)))
                self._run.arrived(lane, self.meter, envelope, num_bytes)

    def _failed(self, lane: Lane, error: BaseException) -> None:
        num_asked, lost = len(lane.out), len(lane.out) + lane.num_held
        told = {"shard": lane.index, "actor": lane.actor.name, "error": str(error), "lost": lost}
        lane.out.clear()
        self._num_out -= num_asked
        lane.num_held = 0
        num_dropped = sum(other.dropped for other in self.lanes)
        try:
            done = lane.failed(error, may_drop=num_dropped < min(lane.failures.budget, len(self.lanes) - 1))
        except Exception:
            self._run.happened("failed", told)
            raise
        lane.ended = lane.dropped
        if not lane.ended:
            lane.reports.append([])
            lane.begin(self._run.measure)
            for _ in range(num_asked):
                self._ask(lane)
        self._run.happened(done, told)

    def asked(self, method: str) -> list[Any]:
        """Return what the shards that are there answer to a question, and None for the others."""
        there = self._opened and not self._closed
        futures = [lane.ask(method) if there and lane.reachable else None for lane in self.lanes]
        return [future and future.result() for future in futures]

    def settle(self) -> None:
        """Wait until nothing is under way."""
        self._take_in()
        while self._num_out and not self._closed:
            self._run.block()
            self._take_in()

    def state(self) -> Any:
        return {
            "shards": self.asked("state") if self._opened else self._states,
            "ended": [lane.ended for lane in self.lanes],
            "ready": list(self._ready) if self._run.keeps_in_flight else [],
        }

    def restore(self, state: Any) -> None:
        if len(state["ended"]) != len(self.lanes):
            raise FlowError(f"the state is of {len(state['ended'])} shards, the flow has {len(self.lanes)}")
        self._states, self._ready = state["shards"], deque(state["ready"])
        for lane, ended in zip(self.lanes, state["ended"], strict=True):
            lane.ended = ended

    def close(self) -> None:
        for lane in self.lanes if self._opened and not self._closed else ():
            lane.close()
        self._closed = True


class GatherSync(Gather):
    """Rounds of one item of every shard, in shard order. A round begins when it is asked for: that is the barrier."""

    _in_step = True
    _asked = False

    def next(self) -> Item | Word:
        if not self._asked:
            self._asked = True
            there = {index for index, _ in self._ready}
            for lane in self.lanes:
                if not lane.ended and lane.index not in there:
                    self._ask(lane)
        self._take_in()
        if self._num_out:
            return self._run.waiting(self.meter)
        self._asked = False
        items = [item for _, item in sorted(self._ready, key=lambda entry: entry[0])]
        self._ready.clear()
        return ([value for value, _ in items], merge(envelope for _, envelope in items)) if items else Word.END


class GatherAsync(Gather):
    """Items as they come, at most so many asked of a shard.

    For an item that was given another is asked at the next poll: by then the driver has done with it what it does.
    """

    _begun = False
    _given: Lane | None = None

    def next(self) -> Item | Word:
        if not self._begun:
            self._begun = True
            there = [index for index, _ in self._ready]
            for lane in self.lanes * self._num_async:
                if not lane.ended and there.count(lane.index) + len(lane.out) < self._num_async:
                    self._ask(lane)
        if self._given is not None and not self._given.ended:
            self._ask(self._given)
        self._given = None
        self._take_in()
        if self._ready:
            index, item = self._ready.popleft()
            self._given = self.lanes[index]
            return item
        return self._run.waiting(self.meter) if self._num_out else Word.END
