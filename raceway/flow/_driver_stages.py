"""Stages that join and split streams: unions, splits, queues, and operators on a dedicated thread or actor."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raceway.engine.base import Actor
from raceway.errors import ActorError
from raceway.flow._failures import Failures
from raceway.flow._graph import Item, Node, NoItem, replace_actor_handles
from raceway.flow._hosted_objects import Guest, ThreadGuest
from raceway.flow._operators import Operator, Stage
from raceway.flow._requests import ItemSender
from raceway.flow._shard import make_operator
from raceway.flow.monitoring import Meter
from raceway.flow.rate_limits import RateLimiter, WeightedTurns

if TYPE_CHECKING:
    from raceway.flow._run import Run


@dataclass(eq=False)
class UnionInput:
    """One of the branches of a union."""

    name: str
    stage: Stage
    emits: bool
    """Whether its items are passed on, or only read."""


class Union(Stage):
    """Reads several streams: in turn, by weight, or whichever is ready."""

    def __init__(
        self,
        run: Run[Any],
        node: Node,
        inputs: Sequence[UnionInput],
        turns: WeightedTurns,
        limiter: RateLimiter,
        in_turn: bool,
    ) -> None:
        self.meter = Meter()
        self.run, self.node, self.inputs, self.turns, self.limiter = run, node, inputs, turns, limiter
        self.open = list(inputs)  # those that have not ended
        self.all_emit = all(branch.emits for branch in inputs)
        self.next = self._next_in_turn if in_turn else self._next_ready

    def poll(self) -> Item | NoItem:
        while self.open if self.all_emit else [branch for branch in self.open if branch.emits]:
            answer = self.next()
            if isinstance(answer, NoItem):
                self.run.blocked.append(self)
                return answer
            branch, item = answer
            self.meter.items += 1
            self.limiter.count(branch.name, item[0])
            if branch.emits:
                return item
        return NoItem.END

    def _next_in_turn(self) -> tuple[UnionInput, Item] | NoItem:
        not_ready: set[int] = set()  # among the branches with the weight "*", for which others do not wait
        while available := [
            index
            for index, branch in enumerate(self.inputs)
            if branch in self.open and index not in not_ready and not self.is_limited(branch)
        ]:
            index = self.turns.choose(available)
            answer = self.inputs[index].stage.poll()
            if not isinstance(answer, NoItem):
                self.turns.charge(index)
                return self.inputs[index], answer
            if answer is NoItem.END:
                self.open.remove(self.inputs[index])
            elif self.turns.ends_own_turn[index]:
                self.turns.end_turn(index)
                not_ready.add(index)
            else:
                return answer
        return NoItem.PENDING if self.open else NoItem.END

    def _next_ready(self) -> tuple[UnionInput, Item] | NoItem:
        total = len(self.inputs)
        for index in range(self.turns.turn, self.turns.turn + total):
            branch = self.inputs[index % total]
            if branch in self.open and not (self.limiter.limits and self.is_limited(branch)):
                answer = branch.stage.poll()
                if not isinstance(answer, NoItem):
                    self.turns.turn = (index + 1) % total
                    return branch, answer
                if answer is NoItem.END:
                    self.open.remove(branch)
        return NoItem.PENDING if self.open else NoItem.END

    def is_limited(self, branch: UnionInput) -> bool:
        """Whether a rate limit blocks a branch."""
        return self.limiter.blocks(branch.name, {other.name for other in self.inputs if other not in self.open})

    def state(self) -> Any:
        open_indices = [self.inputs.index(branch) for branch in self.open]
        return {"turns": self.turns.state(), "limits": self.limiter.state(), "open": open_indices}

    def restore(self, state: Any) -> None:
        self.turns.restore(state["turns"])
        self.limiter.restore(state["limits"])
        self.open = [self.inputs[index] for index in state["open"]]

    def close(self) -> None:
        for branch in self.inputs:
            branch.stage.close()


class Split(Stage):
    """Passes every item to every branch. A branch that is ahead waits for the others while the flow can continue."""

    state_attributes = ("queues", "left", "ended")

    def __init__(self, run: Run[Any], node: Node, names: Sequence[str], buffer: int) -> None:
        self.meter = Meter()
        self.run, self.node, self.buffer = run, node, buffer
        self.parent = run.stage(node.parents[0])
        self.queues: dict[str, deque[Item]] = {name: deque() for name in names}
        self.left: set[str] = set()  # branches that were closed
        self.ended = False
        self.max_lead = 1  # items that a branch may be ahead of another, for now
        self._pending_poll = -1  # of the run, in which the parent had no item

    def poll_branch(self, name: str) -> Item | NoItem:
        """Return the next item for a branch."""
        if self.queues[name]:
            self.max_lead = 1
            self.run.wakeups.append(self)  # another branch may have waited for this read
            return self.queues[name].popleft()
        if self.ended or name in self.left:
            return NoItem.END
        if self.backlog >= self.max_lead:
            self.run.blocked.append(self)
            return NoItem.PENDING
        if self._pending_poll == self.run.num_polls:
            # An item that arrives meanwhile goes to the branch that asked first: whose turn it is must not depend on
            # the speed of actors.
            return NoItem.PENDING
        answer: Item | NoItem = self.parent.poll()
        if isinstance(answer, NoItem):
            self.ended = answer is NoItem.END
            self._pending_poll = self.run.num_polls
            return answer
        self.meter.items += 1
        for other in self.queues.keys() - self.left - {name}:
            self.queues[other].append(answer)
        return answer

    @property
    def backlog(self) -> int:
        """Items that the slowest branch has not read."""
        return max(map(len, self.queues.values()))

    def extend_lead(self) -> bool:
        """Allow a branch to be one item further ahead. Return False if the buffer is full."""
        self.max_lead = min(self.backlog + 1, self.buffer)
        return self.backlog < self.buffer

    def close_branch(self, name: str) -> None:
        """Stop passing items to a branch."""
        self.left.add(name)
        self.queues[name].clear()
        if len(self.left) == len(self.queues):
            self.parent.close()


class Branch(Stage):
    """One output of a split."""

    def __init__(self, run: Run[Any], node: Node, name: str) -> None:
        split: Split = run.stage(node.parents[0])
        self.poll = lambda: split.poll_branch(name)  # type: ignore[method-assign]
        self.close = lambda: split.close_branch(name)  # type: ignore[method-assign]


class Queue(Operator):
    """Reads items as soon as they are available, up to its size."""

    size: int

    def setup(self) -> None:
        self.context["run"].queues.append(self)

    def poll(self) -> Item | NoItem:
        self.fill()
        return super().poll() if self.ready or self.ended else NoItem.PENDING

    def fill(self) -> None:
        """Read the available items. The run calls it too, while it waits for something else."""
        answer: Item | NoItem | None = None
        while len(self.ready) < self.size and not self.ended and answer is not NoItem.PENDING:
            answer = self.parent.poll()
            if answer is not NoItem.PENDING:
                self.accept(answer)


class OffloadedForEach(Operator):
    """A `for_each` on a dedicated thread or actor, which works while the driver continues."""

    max_in_flight: int
    actor: Actor | None

    def setup(self) -> None:
        self.run: Run[Any] = self.context["run"]
        self.guest: Guest | ThreadGuest = ThreadGuest()
        if self.actor is not None:
            self.guest = Guest(self.actor, f"{self.run.id}/{self.context['index']}", self.spec.label, Failures())
        self.in_flight = ItemSender(self.guest, self.run.wakeups)
        self.saved: Any = None  # state of the operator to restore
        self.opened = False

    def send(self, item: Item) -> None:
        """Send an item to the operator."""
        if not self.opened:
            self.opened = True
            spec = self.spec._replace(settings={"function": self.spec.settings["function"]})
            settings = spec, self.meter.measure, replace_actor_handles(self.saved)
            if self.actor is not None:
                self.guest.open(make_operator, *settings)
            else:
                self.guest.open(make_operator, *settings, self.context["use"])
        self.in_flight.send(item if self.actor is None else replace_actor_handles(item), item[1])

    def poll(self) -> Item | NoItem:
        answer: Item | NoItem | None = None
        while (
            len(self.in_flight) + len(self.ready) < self.max_in_flight
            and not self.ended
            and answer is not NoItem.PENDING
        ):
            answer = self.parent.poll()
            if not isinstance(answer, NoItem):
                self.send(answer)
            self.ended = answer is NoItem.END
        self.receive()
        if self.ready or (self.ended and not self.in_flight):
            return super().poll()
        self.run.waiting += [self.meter] if self.in_flight else []
        return NoItem.PENDING

    def receive(self) -> None:
        """Receive the results that have arrived."""
        for (value, counters), envelope in self.in_flight.receive():
            self.ready.append((value, envelope))
            self.meter.set_values(counters)

    def state(self) -> Any:
        operator_state = self.saved
        if self.opened:
            operator_state = self.guest.result_or_error(self.guest.call("state"))
            if isinstance(operator_state, ActorError):
                self.guest.handle_failure(operator_state)  # raises: it names the operator
            if isinstance(operator_state, BaseException):
                raise operator_state
        return {**super().state(), "ready": self.ready if self.run.keeps_in_flight else deque(), "op": operator_state}

    def restore(self, state: Any) -> None:
        super().restore(state)
        self.saved = state["op"]

    def close(self) -> None:
        if self.opened:
            self.guest.close()
            self.in_flight.clear()
        self.opened = False
        super().close()

    def join(self) -> None:
        """Wait for the current call on its thread, after closing."""
        if isinstance(self.guest, ThreadGuest):
            self.guest.join()
