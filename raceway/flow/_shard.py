"""Sources of items, and what runs in an actor: a source and the operators behind it, asked for one item at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter as _clock
from time import time as _now
from types import GeneratorType
from typing import Any, ClassVar

from raceway import state as states
from raceway.engine.base import Home
from raceway.errors import FlowError
from raceway.flow._graph import Envelope, Gifts, Item, Shard, Source, Step, StreamEnd, Word, unsealed, wanted
from raceway.flow._operators import ForEach, Op, Stage, Take
from raceway.injection import injected, injected_parameters

_REPORT_SECONDS = 0.2  # how often a shard sends its counters along with an item


class Origin:
    """Where items come from: a function, called for every iteration, that returns something to iterate.

    If it does not go on by itself where it was, as an actor does, what was given before is skipped.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], parallel: bool, goes_on: bool = False) -> None:
        self.function = function
        self.asked = wanted(function, parallel, "number")
        self.goes_on = goes_on

    def opened(self, gifts: Gifts, position: int) -> Iterator[Any]:
        """Begin, after so many items that were given before."""
        try:
            items = iter(self.function(**{name: gifts[name] for name in self.asked}))
        except StopIteration as error:
            raise RuntimeError("the source raised StopIteration before it began") from error
        if not self.goes_on:
            next(islice(items, position, position), None)
        return items


def dealt(items: Sequence[Any], *, shard: Shard = injected) -> Iterable[Any]:
    """Return a shard's part of a sequence."""
    return items[shard.number :: shard.total]


def one_for_each(makers: Sequence[Any], *, shard: Shard = injected) -> Iterable[Any]:
    """Return what the shard's own maker makes; one that is a collection stands for itself."""
    maker = makers[shard.number]
    return maker() if callable(maker) else maker  # type: ignore[no-any-return]


def itself(*, actor: Any = injected) -> Iterable[Any]:
    """Return the actor's object, which can be iterated."""
    return actor  # type: ignore[no-any-return]


def calls(method: str, *, actor: Any = injected, shard: Shard = injected, number: int = injected) -> Iterator[Any]:
    """Call a method of the actor's object for every item, beginning with this one."""
    function = getattr(actor, method)
    asked = injected_parameters(function, ("number", "shard"), "behind create()")
    while True:
        gifts, number = {"number": number, "shard": shard}, number + 1
        yield function(**{name: gifts[name] for name in asked}) if asked else function()


def once(items: list[Iterator[Any]]) -> Iterator[Any]:
    """Return an iterator that is there already, the first time."""
    if not items:
        raise FlowError("the iterator behind this flow was read before. Give a function that makes one instead.")
    return items.pop()


class Reader(Op):
    """The first stage: gives the items of an origin."""

    state_attributes: ClassVar[tuple[str, ...]] = (*Op.state_attributes, "position")
    position = 0  # how many items it has given
    home: Home | None = None
    sources: tuple[Source, ...] = ()
    _items: Iterator[Any] | None = None

    def poll(self) -> Item | Word:
        if self.ended:
            return Word.END
        version = self.home.guests.get("version") if self.home else None
        begun, begin = _now(), _clock()
        try:
            if self._items is None:
                self._items = self.step.part.opened({**self.gifts, "number": self.position}, self.position)
            value = next(self._items)
        except (StopIteration, StreamEnd):  # of the iterator itself: from within a method it is a RuntimeError here
            self.ended = True
            return Word.END
        except Exception as error:
            raise self.failure(error, None) from error
        spent = _clock() - begin
        item = value, Envelope(self.sources, self.position, version, begun, begun + spent)
        self.position += 1
        self.meter.count(item, spent)
        return item

    def close(self) -> None:
        self.ended = True
        if isinstance(self._items, GeneratorType) and not self._items.gi_running:
            self._items.close()
        self._items = None


class RunningShard:
    """A shard in its actor."""

    def __init__(
        self,
        home: Home,
        steps: Sequence[Step],
        shard: Shard,
        source: Source,
        measure: bool,
        marks: Sequence[int],
        state: Any,
    ) -> None:
        self._home = home
        reader = Reader(Stage(), steps[0], {"actor": home.object, "shard": shard}, measure)
        reader.home, reader.sources = home, (source,)
        self._row: list[Op] = [reader]
        for step in steps[1:]:
            self._row.append(step.part(self._row[-1], step, reader.gifts, measure))
        self._marked: list[Any] = [op for op in self._row if isinstance(op, (Reader, Take))]
        for op, position in zip(self._marked, marks, strict=False):
            op.position, op.ended = position, isinstance(op, Take) and position >= op.count
        self._idle_since = self._report_at = _clock()
        if state is not None:
            for op, saved in zip(self._row, state["operators"], strict=True):
                op.restore(saved)
            home.guests["version"] = state["version"]
            states.restore_actor(home.object, state["actor"], shard)

    def pull(self) -> tuple[Any, ...]:
        """Return an item, its envelope, the source's position, what is held, and counters; at the end just these."""
        self._row[0].meter.waiting += _clock() - self._idle_since
        answer = self._row[-1].poll()
        self._idle_since = now = _clock()
        if isinstance(answer, Word):
            return (self.report(),)
        report = None
        if now >= self._report_at:
            self._report_at, report = now + _REPORT_SECONDS, self.report()
        held = sum([op.num_held for op in self._row[1:]]) if len(self._row) > 1 else 0
        return answer[0], unsealed(answer[1])[1:6], [op.position for op in self._marked], held, report

    def report(self) -> list[tuple[Any, ...]]:
        """Return the counters of the source and of every operator."""
        return [op.meter.figures() for op in self._row]

    def state(self) -> Any:
        actor = states.state_of_actor(self._home.object, self._row[0].gifts["shard"])
        version = self._home.guests.get("version")
        return {"operators": [op.state() for op in self._row], "actor": actor, "version": version}

    def close(self) -> None:
        self._row[0].close()


def operator_on(home: Home, step: Step, measure: bool, state: Any) -> Op:
    """Make an operator that items are sent to."""
    op = ForEach(Stage(), step, {"actor": home.object, "shard": None}, measure)
    if state is not None:
        op.restore(state)
    return op


def deliver(home: Home, method: str, version: int | None, /, *args: Any, **kwargs: Any) -> Any:
    """Hand a message to the actor's object and note the version that it brings."""
    result = getattr(home.object, method)(*args, **kwargs)
    if version is not None:
        home.guests["version"] = version
    return result
