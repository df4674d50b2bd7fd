"""Operators that turn items into items: the same on a shard and in the driver."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from raceway import state as states
from raceway.errors import FlowError, OperatorError
from raceway.flow._graph import Envelope, Gifts, Item, Shard, Source, Step, Word, unsealed, wanted
from raceway.flow.counters import Meter
from raceway.injection import injected


class Stage(states.Stateful):
    """A part of a running flow."""

    def poll(self) -> Item | Word:
        """Return the next item, or PENDING, or END."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what was opened. May be called twice."""


class Op(Stage):
    """An operator behind another stage. What kind of operator, `feed` says: items for an item."""

    state_attributes: ClassVar[tuple[str, ...]] = ("ready", "held", "ended")

    def __init__(self, parent: Stage, step: Step, gifts: Gifts, measure: bool) -> None:
        self.parent, self.step, self.gifts = parent, step, gifts
        self.meter = Meter(measure)
        self.ready: deque[Item] = deque()
        self.held: list[Any] = []  # what nothing has come of yet
        self.ended = False
        vars(self).update(step.settings)
        self.begin()

    def begin(self) -> None:
        """Make what changes while it runs."""

    def feed(self, item: Item) -> Iterable[Item]:
        """Take in an item and return what comes of it."""
        return (item,)

    def finish(self) -> Iterable[Item]:
        """Return what is left when there are no more items."""
        return ()

    def poll(self) -> Item | Word:
        while not self.ready:
            if self.ended:
                return Word.END
            answer = self.parent.poll()
            if answer is Word.PENDING:
                return answer
            self.take(answer)
        return self.ready.popleft()

    def take(self, answer: Item | Word) -> None:
        """Take in an item or the end."""
        begin = time.perf_counter()
        try:
            if isinstance(answer, Word):
                self.ended = True
                self.ready.extend(self.finish())
            else:
                self.ready.extend(self.feed(answer))
                self.meter.count(answer, time.perf_counter() - begin)
        except Exception as error:
            raise self.failure(error, None if isinstance(answer, Word) else answer) from error

    def failure(self, error: Exception, item: Item | None) -> OperatorError:
        """Return the error that says where and on what it failed."""
        shard, shown = self.gifts.get("shard"), item and (unsealed(item[1]).sequence, item[0])
        return OperatorError.of(error, self.step.label, self.step.where, None if shard is None else shard.number, shown)

    @property
    def num_held(self) -> int:
        """How many items it has taken in that it has not given on."""
        return len(self.ready) + len(self.held)

    def close(self) -> None:
        self.ended = True
        self.parent.close()


class Calling(Op):
    """An operator around a user's function."""

    function: Callable[..., Any]

    def begin(self) -> None:
        self.asked = wanted(self.function, parallel="actor" in self.gifts)
        self.kwargs = {name: self.gifts[name] for name in self.asked if name != "envelope"}

    def call(self, item: Item) -> Any:
        envelope = {"envelope": unsealed(item[1])} if "envelope" in self.asked else {}
        return self.function(item[0], **envelope, **self.kwargs)

    def state(self) -> Any:
        return {"function": states.state_of(self.function), **super().state()}

    def restore(self, state: Any) -> None:
        states.restore(self.function, state["function"])
        super().restore(state)


class ForEach(Calling):
    """One value for every item: the most usual operator, and so it goes the shortest way."""

    def poll(self) -> Item | Word:
        answer = Word.END if self.ended else self.parent.poll()
        if not isinstance(answer, Word):
            return self.apply(answer), answer[1]
        self.ended = answer is Word.END
        return answer

    def apply(self, item: Item) -> Any:
        """Return the value that comes of an item."""
        begin = time.perf_counter()
        try:
            value = self.call(item) if self.asked else self.function(item[0])
        except Exception as error:
            raise self.failure(error, item) from error
        self.meter.count(item, time.perf_counter() - begin)
        return value

    def through(self, item: Item) -> tuple[Any, Any]:
        """Return the value, and the counters."""
        return self.apply(item), self.meter.figures()


class Filter(Calling):
    def feed(self, item: Item) -> Iterable[Item]:
        return (item,) if self.call(item) else ()


class FlatMap(Calling):
    def feed(self, item: Item) -> Iterable[Item]:
        return [(value, item[1]) for value in self.call(item)]


class Flatten(Op):
    """The items of a batch or round get their own envelopes back."""

    def feed(self, item: Item) -> Iterable[Item]:
        values, parts = list(item[0]), unsealed(item[1]).parts
        return zip(values, parts if len(parts) == len(values) else [item[1]] * len(values), strict=True)


class Combine(Calling):
    """As FlatMap, for a function that holds items back: their envelopes go with what it gives in the end."""

    def feed(self, item: Item) -> Iterable[Item]:
        self.held.append(item[1])
        return self._emitted(self.call(item))

    def finish(self) -> Iterable[Item]:
        return self._emitted(self.function.finish()) if self.held and hasattr(self.function, "finish") else ()

    def _emitted(self, values: Iterable[Any]) -> list[Item]:
        values = list(values)
        seal, self.held = (tuple(self.held), []) if values else ((), self.held)
        return [(value, seal) for value in values]


class Batch(Op):
    size: int

    def feed(self, item: Item) -> Iterable[Item]:
        self.held.append(item)
        return self.finish() if len(self.held) == self.size else ()

    def finish(self) -> Iterable[Item]:
        items, self.held = self.held, []
        return [([value for value, _ in items], tuple([seal for _, seal in items]))] if items else ()


class Shuffle(Batch):
    """Holds so many items and gives one of them, by chance, for every further one."""

    state_attributes: ClassVar[tuple[str, ...]] = (*Op.state_attributes, "random")
    seed: int

    def begin(self) -> None:
        self.random: np.random.Generator = self.gifts.get("shard", Shard(0, 1))._replace(seed=self.seed).generator()

    def feed(self, item: Item) -> Iterable[Item]:
        if len(self.held) < self.size:
            self.held.append(item)
            return ()
        place = int(self.random.integers(self.size))
        chosen, self.held[place] = self.held[place], item
        return (chosen,)

    def finish(self) -> Iterable[Item]:
        items, self.held = self.held, []
        return [items[place] for place in self.random.permutation(len(items))]


class Take(Op):
    state_attributes: ClassVar[tuple[str, ...]] = (*Op.state_attributes, "position")
    count: int

    def begin(self) -> None:
        self.position = 0  # how many it has given
        self.ended = self.count == 0

    def feed(self, item: Item) -> Iterable[Item]:
        self.position += 1
        if self.position >= self.count:
            self.close()
        return (item,)


def with_source(value: Any, *, envelope: Envelope = injected) -> tuple[Source, Any]:
    """Return an item with where it came from."""
    if len(envelope.sources) != 1:
        raise FlowError(f"the item comes from {len(envelope.sources)} sources; an `envelope` that you ask for has all")
    return envelope.sources[0], value
