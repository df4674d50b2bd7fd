"""One sharded stream behind several plans: each plan gets its own part of the items, as a `ParIter`.

source -> operators of every part     on the shards, where the item was made
   -> gather_sync -> split            one branch for each part
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

from raceway.checks import check_int, unknown_name
from raceway.engine.base import Actor
from raceway.errors import ConfigError
from raceway.flow._driver_stages import Branch, Split
from raceway.flow._failures import Failures
from raceway.flow._graph import Envelope, Item, Node, NoItem, OperatorSpec, Shard
from raceway.flow._iter import Iter
from raceway.flow._operators import ForEach, Operator, Stage
from raceway.flow._par_iter import ParIter
from raceway.injection import injected
from raceway.state import Stateful

RestartHook = Callable[[Actor], Any]
"""Called with an actor that was restarted."""


class SharedStream:
    """A stream of mappings whose entries are for several plans.

    Ask for the parts, build the plans, and then call `connect`. A plan can do with its part whatever it can do with a
    `ParIter`: operators on shards run where the item was made, also those that hold items back. All plans share the
    rounds of the source, so that `gather_async` gives the items of synchronous rounds one after the other.

    Args:
        source: the stream. Its items are mappings with an entry for every part.
        names: the names of the parts.
        buffer: the number of rounds that one plan may be ahead of another.
        actor_of: returns what the operators of a part get as `actor`, from the actor's object and the part's name.
        on_restart: a list to which the `on_restart` of the plans' `on_failure` is added. The failure policy itself
            belongs to the source, as the shards do.

    >>> source = ParIter.from_items([{"low": 1, "high": 2}, {"low": 3, "high": 4}], actors)
    >>> shared = SharedStream(source, ("low", "high"))
    >>> low = shared.part("low").for_each(lambda x: -x).gather_sync()
    >>> high = shared.part("high").filter(lambda x: x > 2).gather_async()
    >>> shared.connect()
    >>> list(union(low, high))
    [[-1, -3], 4]
    """

    def __init__(
        self,
        source: ParIter[Any],
        names: Sequence[str],
        *,
        buffer: int = 1000,
        actor_of: Callable[[Any, str], Any] | None = None,
        on_restart: list[RestartHook] | None = None,
    ) -> None:
        self.source, self.names, self.actor_of = source, tuple(names), actor_of
        self.on_restart: list[RestartHook] = [] if on_restart is None else on_restart
        make_split = partial(Split, names=self.names, buffer=check_int("buffer", buffer))
        self._split = Node(f"split({', '.join(names)})", make_split, ())
        self._operators: dict[str, PartOperators] = {}

    def part(self, name: str) -> Part:
        """Return the stream of one part."""
        if name not in self.names:
            raise unknown_name("part", name, self.names)
        return Part(Node(f"part({name})", _same_shards, [self.source._node], parallel=True), self, name)

    def branch(self, name: str, specs: Sequence[OperatorSpec]) -> Iter[list[Mapping[str, Any]]]:
        """Return the rounds for a part whose operators on shards are these."""
        if name in self._operators:
            raise ConfigError(f"part {name!r} is gathered twice. Use split() after gathering it.")
        self._operators[name] = PartOperators(name, specs, self.actor_of)
        return Iter(Node(f"branch({name})", partial(Branch, name=name), [self._split]))

    def connect(self, observe: Callable[[list[Any]], list[Any]] | None = None) -> None:
        """Connect the parts to the source, after all of them were gathered.

        Args:
            observe: an operator in the driver that sees every round before the parts do, and returns it.
        """
        missing = [name for name in self.names if name not in self._operators]
        if missing:
            raise ConfigError(f"the plan of part {missing[0]!r} does not gather its stream. Call gather_sync() on it.")
        stream = self.source
        for name in self.names:
            stream = stream.for_each(self._operators[name])
        rounds = stream.gather_sync()
        # The only node that is completed later: the plans behind it say what happens before it.
        self._split.parents = ((rounds if observe is None else rounds.for_each(observe))._node,)


class Part(ParIter[Any]):
    """The stream of one part of a `SharedStream`."""

    def __init__(self, node: Node, shared: SharedStream, name: str, shards: Sequence[int] | None = None) -> None:
        super().__init__(node)
        self._shared, self._name, self._shards = shared, name, shards

    def _add(self, operator: type[Operator], label: str, **settings: Any) -> Any:
        node = Node(label, operator, [self._node], parallel=True, **settings)
        return Part(node, self._shared, self._name, self._shards)

    def take(self, count: int) -> NoReturn:
        """Refuse: the shards are shared with other plans, which may need more of their items."""
        raise ConfigError(f"take() cannot end the shards of {self._name!r}, which other plans share. Gather it first.")

    def repeat(self, times: int | None = None) -> NoReturn:
        """Refuse: the source belongs to all plans."""
        raise ConfigError(f"repeat() cannot read the source of {self._name!r} again, which other plans share.")

    def on_failure(self, policy: str, **settings: Any) -> Part:
        """Add the plan's `on_restart`. The failure policy is that of the source, whose shards all plans share."""
        failures = Failures(policy=policy, **settings)
        if failures.on_restart is not None:
            self._shared.on_restart.append(failures.on_restart)
        return self

    def select_shards(self, *numbers: int) -> Part:
        """Keep only the shards with these numbers, in this order. Each can be kept once."""
        super().select_shards(*numbers)  # checks them
        if self._shards is not None:
            numbers = tuple(self._shards[number] for number in numbers)
        return Part(self._node, self._shared, self._name, numbers)

    def union(self, *others: ParIter[Any]) -> NoReturn:
        """Refuse: the shards of other streams are not gathered with these."""
        raise ConfigError(f"union() cannot add shards to those of {self._name!r}. Gather both, and use union().")

    def gather_sync(self) -> Iter[list[Any]]:
        """Gather synchronous rounds, as `ParIter.gather_sync` does."""
        specs = self._specs()
        rounds = self._shared.branch(self._name, specs)
        if all(spec.implementation is ForEach for spec in specs):
            return rounds.for_each(SelectRound(self._name, self._shards))
        return rounds.combine(CollectRounds(self._name, self._shards))

    def gather_async(self, num_async: int = 1) -> Iter[Any]:
        """Return the items of synchronous rounds one after the other, each with its own source."""
        check_int("num_async", num_async)
        items: Iter[Mapping[str, Any]] = self._shared.branch(self._name, self._specs()).flatten()
        if self._shards is not None:
            items = items.filter(FromShards(self._shards))
        return items.flat_map(SelectItems(self._name))

    batch_across_shards = gather_sync

    def _specs(self) -> list[OperatorSpec]:
        """Return the operators on shards, in order."""
        specs: list[OperatorSpec] = []
        node = self._node
        while isinstance(node.spec.implementation, type):
            specs.append(node.spec)
            node = node.parents[0]
        return specs[::-1]


def _same_shards(shards: Any) -> Any:
    return shards


class _Inbox(Stage):
    """The first stage on a shard: the entry of the current item."""

    def __init__(self) -> None:
        self.items: deque[Item] = deque()

    def poll(self) -> Item | NoItem:
        return self.items.popleft() if self.items else NoItem.PENDING


class PartOperators(Stateful):
    """Apply the operators of one part to its entry of every item, which becomes the list of their results.

    Args:
        name: the name of the part.
        specs: the operators, in order.
        actor_of: see `SharedStream`.
    """

    def __init__(
        self, name: str, specs: Sequence[OperatorSpec], actor_of: Callable[[Any, str], Any] | None = None
    ) -> None:
        self.name, self.specs, self.actor_of = name, list(specs), actor_of
        self.__name__ = f"{name}: {' -> '.join(_short_label(spec.label) for spec in specs) or 'unchanged'}"
        self._stages: list[Any] = []
        self._restored: Any = None  # the state of operators that are not created yet

    def __call__(
        self,
        item: Mapping[str, Any],
        *,
        actor: Any = injected,
        shard: Shard = injected,
        envelope: Envelope = injected,
    ) -> dict[str, Any]:
        """Return the item with the results of the operators in place of the part's entry."""
        if not self._stages:
            self._create(actor, shard)
        self._stages[0].items.append((item[self.name], envelope))
        results = []
        while not isinstance(answer := self._stages[-1].poll(), NoItem):
            results.append(answer[0])
        return {**item, self.name: results}

    def _create(self, actor: Any, shard: Shard) -> None:
        own = actor if self.actor_of is None else self.actor_of(actor, self.name)
        self._stages = [_Inbox()]
        for spec in self.specs:
            self._stages.append(spec.implementation(self._stages[-1], spec, {"actor": own, "shard": shard}, False))
        for stage, state in zip(self._stages[1:], self._restored or (), strict=False):
            stage.restore(state)
        self._restored = None

    def state(self) -> Any:
        """Return the states of the operators."""
        return [stage.state() for stage in self._stages[1:]] if self._stages else self._restored or []

    def restore(self, state: Any) -> None:
        """Restore the states of the operators when they are created."""
        self._stages, self._restored = [], state


def _short_label(label: str) -> str:
    """Return the label of an operator without `for_each`, which most are.

    >>> _short_label("for_each(AddAdvantages)"), _short_label("batch(4)")
    ('AddAdvantages', 'batch(4)')
    """
    return label.removeprefix("for_each(").removesuffix(")") if label.startswith("for_each(") else label


class SelectRound(Stateful):
    """Select the entry of a part from every item of a round, where there is exactly one result for each."""

    def __init__(self, name: str, shards: Sequence[int] | None = None) -> None:
        self.name, self.shards = name, shards

    def __call__(self, round: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Return the entries."""
        items = round if self.shards is None else [round[number] for number in self.shards]
        return [item[self.name][0] for item in items]


class CollectRounds(Stateful):
    """Collect rounds of one result per shard, where a shard has none or several for an item. For `combine`."""

    state_attributes: ClassVar[tuple[str, ...]] = ("queues",)

    def __init__(self, name: str, shards: Sequence[int] | None = None) -> None:
        self.name, self.shards = name, shards
        self.queues: dict[int, deque[Any]] = {}

    def __call__(self, round: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
        """Return the rounds that are complete."""
        numbers = range(len(round)) if self.shards is None else self.shards
        for number in numbers:
            self.queues.setdefault(number, deque()).extend(round[number][self.name])
        queues = [self.queues[number] for number in numbers]
        return [[queue.popleft() for queue in queues] for _ in range(min(map(len, queues)))]


class SelectItems(Stateful):
    """Select the results of a part from an item. For `flat_map`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, item: Mapping[str, Any]) -> Iterable[Any]:
        """Return the results."""
        results: Iterable[Any] = item[self.name]
        return results


class FromShards(Stateful):
    """Whether an item comes from one of some shards. For `filter`."""

    def __init__(self, shards: Sequence[int]) -> None:
        self.shards = shards

    def __call__(self, item: object, *, envelope: Envelope = injected) -> bool:
        """Return whether it does."""
        return any(source.shard in self.shards for source in envelope.sources)
