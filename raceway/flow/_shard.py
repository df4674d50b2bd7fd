"""Sources of items, and what runs in an actor: a source and the operators behind it, asked for one item at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from types import GeneratorType
from typing import Any, ClassVar, NamedTuple

from raceway import state as states
from raceway.engine.base import Home
from raceway.errors import FlowError
from raceway.flow._graph import Step, asked_for, given
from raceway.flow._items import Envelope, Gifts, Item, Shard, Source, StreamEnd, Word
from raceway.flow._ops import Op

_REPORT_SECONDS = 0.2  # how often a shard sends its counters along with an item


class Origin:
    """Where items come from: a function, called once for every iteration, that returns something to iterate.

    `goes_on` says that how far it is belongs to the actor's own state. Any other starts from the beginning when it is
    opened anew, and skips what it gave before.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], parallel: bool, goes_on: bool = False) -> None:
        self.function = function
        self.asked = asked_for(function, parallel)
        self.goes_on = goes_on

    def opened(self, gifts: Gifts, position: int) -> Iterator[Any]:
        """Begin, after so many items that were given before."""
        items = iter(self.function(**{name: gifts[name] for name in self.asked}))
        if not self.goes_on:
            next(islice(items, position, position), None)
        return items


def dealt(items: Sequence[Any], *, shard: Shard = given) -> Iterable[Any]:
    """Return a shard's part of a sequence."""
    return items[shard.number :: shard.total]


def one_for_each(makers: Sequence[Any], *, shard: Shard = given) -> Iterable[Any]:
    """Return what the shard's own maker makes; one that is a collection stands for itself."""
    maker = makers[shard.number]
    return maker() if callable(maker) else maker  # type: ignore[no-any-return]


def itself(*, actor: Any = given) -> Iterable[Any]:
    """Return the actor's object, which can be iterated."""
    return actor  # type: ignore[no-any-return]


def calls(method: str, *, actor: Any = given, shard: Shard = given) -> Iterator[Any]:
    """Call a method of the actor's object for every item."""
    function = getattr(actor, method)
    gifts = {"shard": shard} if "shard" in asked_for(function, parallel=True) else {}
    while True:
        yield function(**gifts)


def once(items: list[Iterator[Any]]) -> Iterator[Any]:
    """Return an iterator that is there already, the first time."""
    if not items:
        raise FlowError("the iterator behind this flow was read before. Give a function that makes one instead.")
    return items.pop()


class Reader(Op):
    """The first stage: gives the items of an origin."""

    kept: ClassVar[tuple[str, ...]] = (*Op.kept, "position")
    position = 0
    """How many items it has given."""
    home: Home | None = None
    sources: tuple[Source, ...] = ()
    _items: Iterator[Any] | None = None

    def poll(self) -> Item | Word:
        if self.ended:
            return Word.END
        version = self.home.guests.get("version") if self.home else None
        begun, begin = time.time(), time.perf_counter()
        try:
            if self._items is None:
                self._items = self.step.part.opened(self.gifts, self.position)
            value = next(self._items)
        except (StopIteration, StreamEnd):  # of the iterator itself: from within a method it is a RuntimeError here
            self.ended = True
            return Word.END
        except Exception as error:
            raise self.failure(error, None) from error
        spent = time.perf_counter() - begin
        item = value, Envelope(self.sources, self.position, version, begun, begun + spent)
        self.position += 1
        self.meter.count(item, spent)
        return item

    def close(self) -> None:
        self.ended = True
        if isinstance(self._items, GeneratorType):
            self._items.close()
        self._items = None


class Spec(NamedTuple):
    """What a shard is made of, as it is sent to its actor."""

    shard: Shard
    source: Source
    steps: Sequence[Step]
    """The source first."""
    measure: bool
    position: int
    """Items that an earlier life of the shard has given already."""
    state: Any = None


class RunningShard:
    """A shard in its actor."""

    def __init__(self, home: Home, spec: Spec) -> None:
        self._object = home.object
        reader = Reader(None, spec.steps[0], {"actor": home.object, "shard": spec.shard}, spec.measure)
        reader.home, reader.sources, reader.position = home, (spec.source,), spec.position
        self._row: list[Op] = [reader]
        for step in spec.steps[1:]:
            self._row.append(step.part(self._row[-1], step, reader.gifts, spec.measure))
        self._idle_since = self._report_at = time.perf_counter()
        if spec.state is not None:
            for op, state in zip(self._row, spec.state["operators"], strict=True):
                op.restore(state)
            if spec.state["actor"] is not None:
                states.restore(home.object, spec.state["actor"])

    def pull(self) -> tuple[Any, ...]:
        """Return an item, its envelope, how far the source is, what is held, and now and then the counters.

        At the end return the counters alone.
        """
        reader: Any = self._row[0]
        reader.meter.waiting += time.perf_counter() - self._idle_since
        answer = self._row[-1].poll()
        self._idle_since = now = time.perf_counter()
        if isinstance(answer, Word):
            return (self.report(),)
        report = None
        if now >= self._report_at:
            self._report_at, report = now + _REPORT_SECONDS, self.report()
        value, (_, sequence, version, begun, done, size, _) = answer
        held = sum([op.num_held for op in self._row])
        return value, sequence, version, begun, done, size, reader.position, held, report

    def through(self, item: Item) -> tuple[Any, ...]:
        """Return what the last operator makes of an item that is handed in, and the counters."""
        return *self._row[-1].through(item), self.report()

    def report(self) -> list[tuple[Any, ...]]:
        """Return the counters of the source and of every operator."""
        return [op.meter.figures() for op in self._row]

    def state(self) -> Any:
        actor = self._object.state() if states.decides(self._object) else None
        return {"operators": [op.state() for op in self._row], "actor": actor}

    def close(self) -> None:
        self._row[0].close()


def deliver(home: Home, method: str, version: int | None, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Hand a message to the actor's object and note the version that it brings."""
    result = getattr(home.object, method)(*args, **kwargs)
    if version is not None:
        home.guests["version"] = version
    return result
