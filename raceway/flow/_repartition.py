"""`repartition`: shards whose source is the stream of other shards, dealt out by the driver."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from raceway.errors import ConfigError, FlowError
from raceway.flow._graph import Envelope, Item, Node, NoItem, OperatorContext, OperatorSpec, resolve_envelope
from raceway.flow._operators import Stage
from raceway.flow._sources import SourceFunction, SourceReader

if TYPE_CHECKING:
    from raceway.flow._gather import ShardGuest
    from raceway.flow._requests import ItemRequester
    from raceway.flow._run import Run

_MAX_QUEUED = 100_000  # items of a shard that is behind the others; more can only be a mistake in the flow

FedItem = tuple[Any, tuple[Any, ...]]
"""An item, and the fields of its envelope after `sequence`, without `parts`."""


class FedSource(SourceFunction):
    """The source of a shard that the driver feeds."""

    def __init__(self) -> None:
        super().__init__(tuple, parallel=True)

    def make_reader(self, spec: OperatorSpec, context: OperatorContext, measure: bool) -> SourceReader:
        return FedReader(Stage(), spec, context, measure)


class FedReader(SourceReader):
    """The first stage of such a shard: passes on what has arrived, and is pending when that is used up."""

    state_attributes: ClassVar[tuple[str, ...]] = (*SourceReader.state_attributes, "inbox", "finished")

    def setup(self) -> None:
        self.inbox: deque[FedItem] = deque()
        self.finished = False

    def poll(self) -> Item | NoItem:
        if self.inbox and not self.ended:
            value, fields = self.inbox.popleft()
            item = value, Envelope(self.sources, self.position, *fields)
            self.position += 1
            self.meter.count(item, 0.0)
            return item
        self.ended = self.ended or self.finished
        return NoItem.END if self.ended else NoItem.PENDING


class Feeder(Stage):
    """The driver's side of a repartition: deals out a stream to shards, each item when its shard needs it.

    The shards take turns, whatever their speed, so that what each of them gets is always the same. The items of a shard
    that needs fewer of them are kept until it does.
    """

    state_attributes = ("queues", "unconfirmed", "num_fed", "turn", "ended")

    def __init__(self, run: Run[Any], node: Node) -> None:
        num_shards = node.spec.settings["num_shards"]
        self.run, self.node = run, node
        self.parent = run.stage(node.parents[0])
        self.queues: list[deque[FedItem]] = [deque() for _ in range(num_shards)]
        self.unconfirmed: list[deque[FedItem]] = [deque() for _ in range(num_shards)]
        """Items that were sent to a shard, and that it has not reported to have read."""
        self.num_fed = [0] * num_shards
        self.turn = 0
        self.ended = False
        self._num_fed_in_state = [0] * num_shards
        self._guests: dict[int, ShardGuest] = {}
        self._wanted: deque[tuple[ItemRequester[Any], ShardGuest]] = deque()  # requests that wait for an item

    def register(self, guest: ShardGuest) -> None:
        """Add a shard that is read."""
        if guest.spec.shard.number in self._guests:
            raise ConfigError(f"{self.node} is read twice. Use split() after gathering it.")
        self._guests[guest.spec.shard.number] = guest

    def request(self, requester: ItemRequester[Any], guest: ShardGuest) -> None:
        """Send a request to a shard as soon as it has an item to work on."""
        self._wanted.append((requester, guest))

    def withdraw(self, guest: ShardGuest) -> int:
        """Withdraw the requests for a shard that have not been sent. Return their number."""
        kept = [wanted for wanted in self._wanted if wanted[1] is not guest]
        count, self._wanted = len(self._wanted) - len(kept), deque(kept)
        return count

    def serve(self) -> None:
        """Send the requests of shards for which there is an item."""
        for _ in range(len(self._wanted)):
            requester, guest = self._wanted.popleft()
            if self._feed(guest):
                requester.send_waiting(guest)
            else:
                self._wanted.append((requester, guest))

    def _feed(self, guest: ShardGuest) -> bool:
        """Send a shard its next item, unless it has one left. Return False if there is none yet."""
        number = guest.spec.shard.number
        self._confirm(guest)
        if len(self.unconfirmed[number]) > len(guest.outstanding):
            return True
        item = self._next(number)
        if item is NoItem.PENDING:
            return False
        if isinstance(item, NoItem):
            guest.call("finish")
            return True
        self.num_fed[number] += 1
        self.unconfirmed[number].append(item)
        guest.call("feed", *item)
        return True

    def _confirm(self, guest: ShardGuest) -> None:
        number, num_read = guest.spec.shard.number, guest.positions[0] if guest.positions else 0
        while len(self.unconfirmed[number]) > self.num_fed[number] - num_read:
            self.unconfirmed[number].popleft()

    def _next(self, number: int) -> FedItem | NoItem:
        """Return the next item of a shard."""
        while not self.queues[number] and not self._adopt(number):
            answer = NoItem.END if self.ended else self.parent.poll()
            if isinstance(answer, NoItem):
                self.ended = answer is NoItem.END
                return answer
            target = self._next_turn()
            if target is not None:
                self.queues[target].append((answer[0], resolve_envelope(answer[1])[2:6]))
                if len(self.queues[target]) > _MAX_QUEUED:
                    raise FlowError(f"shard {target} of {self.node} is {_MAX_QUEUED} items behind shard {number}")
        return self.queues[number].popleft()

    def _adopt(self, number: int) -> bool:
        """Give a shard an item of one that was dropped. Return False if there is none."""
        for items in self._orphaned():
            self.queues[number].append(items.popleft())
            return True
        return False

    def _orphaned(self) -> Iterator[deque[FedItem]]:
        """Yield the items of dropped shards that have led to no result."""
        for number, guest in self._guests.items():
            if guest.dropped:
                self._confirm(guest)
                yield from (items for items in (self.unconfirmed[number], self.queues[number]) if items)

    def _next_turn(self) -> int | None:
        """Return the shard that the next item is for; None if it is not read, or has ended."""
        for _ in self.queues:
            target, self.turn = self.turn, (self.turn + 1) % len(self.queues)
            guest = self._guests.get(target)
            if guest is None or not guest.dropped:
                return None if guest is None or guest.ended else target
        return None

    def rewind(self, guest: ShardGuest) -> None:
        """Send again what a shard had not read when it died. Called when it is started."""
        number = guest.spec.shard.number
        self._confirm(guest)
        num_kept = len(self.unconfirmed[number])
        if guest.state is not None:  # it starts from a state that includes the items fed before
            num_kept = self.num_fed[number] - self._num_fed_in_state[number]
        for _ in range(num_kept):
            self.queues[number].appendleft(self.unconfirmed[number].pop())
        self.num_fed[number] -= num_kept

    def restore(self, state: Any) -> None:
        super().restore(state)
        self._num_fed_in_state = list(self.num_fed)

    def close(self) -> None:
        for items in self._orphaned():
            self.run.counts["lost"] += len(items)  # there was no shard left that could take them
            items.clear()
        self.parent.close()
