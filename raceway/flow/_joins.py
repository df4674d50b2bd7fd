"""How streams meet and part: unions, splits, queues, and operators on a thread or an actor of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.flow._graph import Item, Node, Word, detached
from raceway.flow._guests import Failures, Guest, ThreadGuest
from raceway.flow._operators import Op, Stage
from raceway.flow._requests import Pushes
from raceway.flow._shard import operator_on
from raceway.flow.counters import Meter
from raceway.flow.rate_limits import RateLimiter, WeightedTurns

if TYPE_CHECKING:
    from raceway.flow._run import Run


@dataclass(eq=False)
class Input:
    """One of the streams that meet in a union."""

    name: str
    stage: Stage
    emits: bool


class Union(Stage):
    """Takes from several streams: each in its turn, as often as its weight says, or whichever is ready."""

    def __init__(
        self,
        run: Run[Any],
        node: Node,
        inputs: Sequence[Input],
        turns: WeightedTurns,
        limits: RateLimiter,
        in_turn: bool,
    ) -> None:
        self.meter = Meter()
        self.run, self.node, self.inputs, self.turns, self.limits = run, node, inputs, turns, limits
        self.open, self.all_emit = list(inputs), all(one.emits for one in inputs)  # those that have not ended
        self.next = self._next_in_turn if in_turn else self._next_ready

    def poll(self) -> Item | Word:
        while self.open if self.all_emit else [one for one in self.open if one.emits]:
            found = self.next()
            if isinstance(found, Word):
                self.run.blocked.append(self)
                return found
            one, item = found
            self.meter.items += 1
            self.limits.took(one.name, item[0])
            if one.emits:
                return item
        return Word.END

    def _next_in_turn(self) -> tuple[Input, Item] | Word:
        while free := [place for place, one in enumerate(self.inputs) if one in self.open and not self.holds(one)]:
            place = self.turns.whose(free)
            answer = self.inputs[place].stage.poll()
            if not isinstance(answer, Word):
                self.turns.took(place)
                return self.inputs[place], answer
            if answer is Word.PENDING:
                return answer
            self.open.remove(self.inputs[place])
        return Word.PENDING if self.open else Word.END

    def _next_ready(self) -> tuple[Input, Item] | Word:
        total = len(self.inputs)
        for place in range(self.turns.turn, self.turns.turn + total):
            one = self.inputs[place % total]
            if one in self.open and not (self.limits.limits and self.holds(one)):
                answer = one.stage.poll()
                if not isinstance(answer, Word):
                    self.turns.turn = (place + 1) % total
                    return one, answer
                if answer is Word.END:
                    self.open.remove(one)
        return Word.PENDING if self.open else Word.END

    def holds(self, one: Input) -> bool:
        """Whether a rate limit holds an input up."""
        return self.limits.hold(one.name, {other.name for other in self.inputs if other not in self.open})

    def state(self) -> Any:
        places = [self.inputs.index(one) for one in self.open]
        return {"turns": self.turns.state(), "limits": self.limits.state(), "open": places}

    def restore(self, state: Any) -> None:
        self.turns.restore(state["turns"])
        self.limits.restore(state["limits"])
        self.open = [self.inputs[place] for place in state["open"]]

    def close(self) -> None:
        for one in self.inputs:
            one.stage.close()


class Split(Stage):
    """Gives every item to every branch. They wait for one that is behind if they can."""

    state_attributes = ("queues", "left", "ended")

    def __init__(self, run: Run[Any], node: Node, names: Sequence[str], buffer: int) -> None:
        self.meter = Meter()
        self.run, self.node, self.buffer = run, node, buffer
        self.parent = run.stage(node.parents[0])
        self.queues: dict[str, deque[Item]] = {name: deque() for name in names}
        self.left: set[str] = set()  # branches that want no more
        self.ended = False
        self.lead = 1  # how far a branch may be ahead of another, for now

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

    def begin(self) -> None:
        self.gifts["run"].queues.append(self)

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


class Moved(Op):
    """An operator that runs on a thread or an actor of its own while the driver goes on."""

    room: int
    actor: Actor | None

    def begin(self) -> None:
        self.run: Run[Any] = self.gifts["run"]
        self.guest: Guest | ThreadGuest = ThreadGuest()
        if self.actor is not None:
            self.guest = Guest(self.actor, f"{self.run.id}/{self.gifts['number']}", self.step.label, Failures())
        self.busy = Pushes(self.guest, self.run.news)  # what is under way
        self.saved: Any = None
        self.opened = False

    def send(self, item: Item) -> None:
        """Send it an item."""
        if not self.opened:
            self.opened = True
            operator = self.step._replace(settings={"function": self.step.settings["function"]})
            self.guest.open(operator_on, operator, self.meter.measure, detached(self.saved))
        self.busy.send(item if self.actor is None else detached(item), item[1])

    def poll(self) -> Item | Word:
        answer: Item | Word | None = None
        while len(self.busy) + len(self.ready) < self.room and not self.ended and answer is not Word.PENDING:
            answer = self.parent.poll()
            if not isinstance(answer, Word):
                self.send(answer)
            self.ended = answer is Word.END
        self.take_in()
        if self.ready or (self.ended and not self.busy):
            return super().poll()
        self.run.waiting += [self.meter] if self.busy else []
        return Word.PENDING

    def take_in(self) -> None:
        """Look at what has come back."""
        for (value, figures), envelope in self.busy.take_in():
            self.ready.append((value, envelope))
            self.meter.set(figures)

    def state(self) -> Any:
        there = self.guest.ask("state").result() if self.opened else self.saved
        return {**super().state(), "ready": self.ready if self.run.keeps_in_flight else deque(), "op": there}

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.saved = state["op"]

    def close(self) -> None:
        if self.opened:
            self.guest.close()
            self.busy.clear()
        self.opened = False
        super().close()
