"""How streams meet and part: unions, splits, queues, and operators on a thread or an actor of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.flow._gather import Lane, ShardPlan
from raceway.flow._graph import Node
from raceway.flow._items import Envelope, Item, Shard, Word, detached
from raceway.flow._ops import ForEach, Op, Stage
from raceway.flow._shard import Origin
from raceway.flow.tracing import Meter

if TYPE_CHECKING:
    from raceway.flow._run import Run


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """Keep one branch of a union from running ahead of another.

    What is taken of `branch` is at most `ratio` times what was taken of `per`, plus `slack`: counted in items, or in
    what `size(item)` returns, and then it may be more by less than one item. When `per` has ended, so has the limit.
    """

    branch: str
    per: str
    ratio: float
    slack: float = 0.0
    size: Callable[[Any], float] | None = None


@dataclass
class Input:
    """One of the streams that meet in a union."""

    name: str
    stage: Stage
    weight: Fraction
    emits: bool
    credit: Fraction = Fraction(0)
    ended: bool = False


class Union(Stage):
    """Takes from several streams: each in its turn, as often as its weight says, or whichever is ready."""

    kept = ("turn", "taken")

    def __init__(
        self, run: Run[Any], node: Node, inputs: Sequence[Input], limits: Sequence[RateLimit], in_turn: bool
    ) -> None:
        self.meter = Meter()
        self.run, self.node, self.inputs, self.limits = run, node, inputs, limits
        self.next = self._next_in_turn if in_turn else self._next_ready
        self.turn = 0
        self.taken: dict[tuple[int, str], float] = {}
        """How much was taken, by limit and branch."""
        inputs[0].credit = inputs[0].weight

    def poll(self) -> Item | Word:
        while True:
            found = self.next()
            if isinstance(found, Word):
                return found
            one, item = found
            self.meter.items += 1
            for place, limit in enumerate(self.limits):
                if one.name in (limit.branch, limit.per):
                    size = 1 if limit.size is None else limit.size(item[0])
                    self.taken[place, one.name] = self.taken.get((place, one.name), 0) + size
            if one.emits:
                return item

    def _next_in_turn(self) -> tuple[Input, Item] | Word:
        num_limited = 0
        while not all(one.ended for one in self.inputs):
            one = self.inputs[self.turn]
            limited = not one.ended and self._is_limited(one)
            if one.ended or one.credit < 1 or limited:
                num_limited += limited
                if num_limited > len(self.inputs) ** 2:  # every other has had its chance
                    return self._stuck()
                self.turn = (self.turn + 1) % len(self.inputs)
                after = self.inputs[self.turn]
                after.credit += after.weight if after.credit < 1 else 0
                continue
            answer = one.stage.poll()
            if answer is Word.PENDING:
                return answer
            if not isinstance(answer, Word):
                one.credit -= 1
                return one, answer
            one.ended = True
        return Word.END

    def _next_ready(self) -> tuple[Input, Item] | Word:
        for step in range(len(self.inputs)):
            place = (self.turn + step) % len(self.inputs)
            one = self.inputs[place]
            if not one.ended and not self._is_limited(one):
                answer = one.stage.poll()
                if not isinstance(answer, Word):
                    self.turn = (place + 1) % len(self.inputs)
                    return one, answer
                one.ended = answer is Word.END
        return Word.END if all(one.ended for one in self.inputs) else self._stuck()

    def _is_limited(self, one: Input) -> bool:
        ended = {other.name for other in self.inputs if other.ended}
        for place, limit in enumerate(self.limits):
            if limit.branch == one.name and limit.per not in ended:
                most = limit.ratio * self.taken.get((place, limit.per), 0) + limit.slack
                taken = self.taken.get((place, one.name), 0)
                if taken + 1 > most if limit.size is None else taken >= most:
                    return True
        return False

    def _stuck(self) -> Word:
        held = [repr(one.name) for one in self.inputs if not one.ended and self._is_limited(one)]
        if held:
            self.run.complaints.append(f"rate limits of {self.node} hold up {', '.join(held)}")
        return Word.PENDING

    def state(self) -> Any:
        return {"inputs": [(one.credit, one.ended) for one in self.inputs], **super().state()}

    def restore(self, state: Any) -> None:
        super().restore(state)
        for one, saved in zip(self.inputs, state["inputs"], strict=True):
            one.credit, one.ended = saved

    def close(self) -> None:
        for one in self.inputs:
            one.stage.close()


class Split(Stage):
    """Gives every item to every branch.

    A branch that is behind is served first: the others wait for it, unless nothing else can be done. Then they run
    ahead of it, by as many items as the buffer holds.
    """

    kept = ("queues", "left", "ended")

    def __init__(self, run: Run[Any], node: Node, names: Sequence[str], buffer: int) -> None:
        self.meter = Meter()
        self.run, self.node, self.buffer = run, node, buffer
        self.parent = run.stage(node.parents[0])
        self.queues: dict[str, deque[Item]] = {name: deque() for name in names}
        self.left: set[str] = set()
        """Branches that want no more."""
        self.ended = False
        self.lead = 1
        """How far a branch may be ahead of another, for now."""

    def give(self, name: str) -> Item | Word:
        """Return the next item for a branch."""
        if self.queues[name]:
            self.lead = 1
            self.run.news.append(self)  # somebody may have waited for this
            return self.queues[name].popleft()
        if self.ended or name in self.left:
            return Word.END
        if self.backlog >= self.lead:
            self.run.blocked.append(self)
            return Word.PENDING
        answer: Item | Word = self.parent.poll()
        if isinstance(answer, Word):
            self.ended = answer is Word.END
            return answer
        self.meter.items += 1
        for other in self.queues.keys() - self.left - {name}:
            self.queues[other].append(answer)
        return answer

    @property
    def backlog(self) -> int:
        return max(map(len, self.queues.values()))

    def relax(self) -> bool:
        """Let a branch run one item further ahead, if the buffer allows it."""
        self.lead = min(self.backlog + 1, self.buffer)
        return self.backlog < self.buffer

    def complaint(self) -> str:
        """Say which branch holds up the others."""
        name = max(self.queues, key=lambda name: len(self.queues[name]))
        read = any(node.parents == (self.node,) and node.label == f"branch({name})" for node in self.run.nodes)
        return (
            f"branch {name!r} of {self.node}, {'' if read else 'which nobody reads in this flow, '}is {self.backlog} "
            "items behind, and another branch needs more before it can give one. Read them at the same pace "
            f"(union_async, or weights that fit), or split with a buffer of more than {self.buffer}"
        )

    def leave(self, name: str) -> None:
        """Have no more items for a branch."""
        self.left.add(name)
        self.queues[name].clear()
        if len(self.left) == len(self.queues):
            self.parent.close()


class Branch(Stage):
    def __init__(self, run: Run[Any], node: Node, name: str) -> None:
        split: Split = run.stage(node.parents[0])
        self.poll = lambda: split.give(name)  # type: ignore[method-assign]
        self.close = lambda: split.leave(name)  # type: ignore[method-assign]


class Queue(Op):
    """Takes items in as soon as they are there, up to its size."""

    size: int
    run: Run[Any]

    def begin(self) -> None:
        self.run.queues.append(self)

    def poll(self) -> Item | Word:
        self.fill()
        return super().poll() if self.ready or self.ended else Word.PENDING

    def fill(self) -> None:
        """Take in what is there. The run sees to it while it waits for something else."""
        answer: Item | Word | None = None
        while len(self.ready) < self.size and not self.ended and answer is not Word.PENDING:
            answer = self.parent.poll()
            if answer is not Word.PENDING:
                self.take(answer)

    def feed(self, item: Item) -> Sequence[Item]:
        return (item,)


class Moved(Op):
    """An operator that runs elsewhere, on a thread or an actor, while the driver goes on."""

    run: Run[Any]
    node: Node
    room: int
    actor: Actor | None

    def begin(self) -> None:
        self.out: deque[tuple[Any, Envelope]] = deque()  # futures, in order
        self.wake = self.run.waker(None)
        self.saved: Any = None
        self.thread: ThreadPoolExecutor | None = None
        self.lane: Lane | None = None
        if self.actor is None:
            self.op = ForEach(None, self.step, {}, self.meter.measure)
            self.meter = self.op.meter

    def _submit(self, item: Item) -> Any:
        if self.actor is None:
            self.thread = self.thread or ThreadPoolExecutor(1, thread_name_prefix="raceway-operator")
            return self.thread.submit(self.op.through, item)
        if self.lane is None:
            nodes = (
                Node("items sent to it", Origin(tuple, parallel=True), ()),
                Node(self.step.label, ForEach, (), function=self.step.settings["function"]),
            )
            self.lane = Lane(0, ShardPlan(self.actor, Shard(0, 1), nodes), self.run.id, self.run.numbers[self.node])
            self.lane.begin(self.meter.measure, self.saved)
        return self.lane.ask("through", detached(item))

    def poll(self) -> Item | Word:
        answer: Item | Word | None = None
        while len(self.out) + len(self.ready) < self.room and not self.ended and answer is not Word.PENDING:
            answer = self.parent.poll()
            if not isinstance(answer, Word):
                self.out.append((self._submit(answer), answer[1]))
                self.out[-1][0].add_done_callback(self.wake)
            self.ended = answer is Word.END
        self._take_in()
        if self.ready or (self.ended and not self.out):
            return super().poll()
        return self.run.waiting(self.meter) if self.out else Word.PENDING

    def _take_in(self) -> None:
        while self.out and self.out[0][0].done():
            future, envelope = self.out.popleft()
            answer = future.result() if self.lane is None else self.lane.answer(future)
            if self.lane is not None:
                if isinstance(answer, BaseException):
                    self.lane.failed(answer, may_drop=False)
                self.lane.reports[-1] = answer[-1]
            self.ready.append((answer[0], envelope))

    def settle(self) -> None:
        """Wait until nothing is under way."""
        self._take_in()
        while self.out:
            self.run.block()
            self._take_in()

    def state(self) -> Any:
        there = self.lane.ask("state").result() if self.lane is not None else self.saved
        ready = self.ready if self.run.keeps_in_flight else deque()
        return {"ready": ready, "ended": self.ended, "op": there if self.actor is not None else self.op.state()}

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.saved = state["op"]
        if self.actor is None:
            self.op.restore(self.saved)

    def close(self) -> None:
        if self.thread is not None:
            self.thread.shutdown(wait=True, cancel_futures=True)
        if self.lane is not None:
            self.lane.close()
        self.ended, self.lane = True, None
        super().close()
