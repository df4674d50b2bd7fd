"""Sources: where the items of a flow come from, on a shard or in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from time import perf_counter as _clock
from time import time as _now
from types import GeneratorType
from typing import Any, ClassVar

from raceway.engine.base import ActorContext
from raceway.errors import FlowError
from raceway.flow._graph import (
    Envelope,
    Item,
    NoItem,
    NotReady,
    OperatorContext,
    OperatorSpec,
    Shard,
    Source,
    StreamEnd,
    requested_parameters,
)
from raceway.flow._operators import Operator, Stage
from raceway.injection import injected, injected_parameters


class SourceFunction:
    """A function that returns an iterable of items, called once for every run.

    After a restore or restart, the items that were read before are skipped, unless the iterable keeps its own
    position, as an actor does.
    """

    def __init__(self, function: Callable[..., Iterable[Any]], parallel: bool, keeps_position: bool = False) -> None:
        self.function = function
        self.requested = requested_parameters(function, parallel, "number")
        self.keeps_position = keeps_position

    def for_shard(self, shard: Shard) -> SourceFunction:
        """Return the source to send to the actor of a shard."""
        return self

    def make_reader(self, spec: OperatorSpec, context: OperatorContext, measure: bool) -> SourceReader:
        """Return the stage that reads it."""
        return SourceReader(Stage(), spec, context, measure)

    def open(self, context: OperatorContext, position: int) -> Iterator[Any]:
        """Return an iterator over the items from `position` on."""
        try:
            items = iter(self.function(**{name: context[name] for name in self.requested}))
        except StopIteration as error:
            raise RuntimeError("the source raised StopIteration before its first item") from error
        if not self.keeps_position:
            next(islice(items, position, position), None)
        return items


class DividedSource(SourceFunction):
    """A source whose items the driver has, or can create: each shard is sent its own part, and no other.

    Args:
        part_of: returns the part of a shard, an iterable, or a function that returns one on the actor.
    """

    def __init__(self, part_of: Callable[[Shard], Any]) -> None:
        super().__init__(partial(iterate, ()), parallel=True)
        self.part_of = part_of

    def for_shard(self, shard: Shard) -> SourceFunction:
        return SourceFunction(partial(iterate, self.part_of(shard)), parallel=True)


def iterate(iterable: Any) -> Iterable[Any]:
    """Return an iterable, after calling it if it is a function."""
    return iterable() if callable(iterable) else iterable  # type: ignore[no-any-return]


def actor_object(*, actor: Any = injected) -> Iterable[Any]:
    """Return the actor's object, which is iterable."""
    return actor  # type: ignore[no-any-return]


def call_method(
    method: str, *, actor: Any = injected, shard: Shard = injected, number: int = injected
) -> Iterator[Any]:
    """Call a method of the actor's object for every item, from item `number` on."""
    function = getattr(actor, method)
    requested = injected_parameters(function, ("number", "shard"), "behind create()")
    while True:
        context, number = {"number": number, "shard": shard}, number + 1
        yield function(**{name: context[name] for name in requested}) if requested else function()


def read_once(iterators: list[Iterator[Any]]) -> Iterator[Any]:
    """Return an existing iterator, the first time; raise after that."""
    if not iterators:
        raise FlowError(
            "the iterator behind this flow was read before, and can be read only once. Pass a function that returns "
            "a new one instead."
        )
    return iterators.pop()


class SourceReader(Operator):
    """The first stage of a stream: reads the items of a source function."""

    state_attributes: ClassVar[tuple[str, ...]] = (*Operator.state_attributes, "position")
    position = 0  # number of items read
    actor_context: ActorContext | None = None
    sources: tuple[Source, ...] = ()
    _items: Iterator[Any] | None = None

    def poll(self) -> Item | NoItem:
        if self.ended:
            return NoItem.END
        version = self.actor_context.guests.get("version") if self.actor_context else None
        started, start = _now(), _clock()
        try:
            if self._items is None:
                context = {**self.context, "number": self.position}
                self._items = self.spec.implementation.open(context, self.position)
            value = next(self._items)
        except (StopIteration, StreamEnd):  # the end; a StopIteration inside a method is a RuntimeError here
            self.ended = True
            return NoItem.END
        except NotReady as error:
            if self.actor_context is None:  # in the driver, which would have nothing to wait for
                raise self.operator_error(error, None) from error
            self._items = None  # the exception has ended the generator
            return NoItem.PENDING
        except Exception as error:
            raise self.operator_error(error, None) from error
        seconds = _clock() - start
        item = value, Envelope(self.sources, self.position, version, started, started + seconds)
        self.position += 1
        self.meter.count(item, seconds)
        return item

    def close(self) -> None:
        self.ended = True
        if isinstance(self._items, GeneratorType) and not self._items.gi_running:
            self._items.close()
        self._items = None
