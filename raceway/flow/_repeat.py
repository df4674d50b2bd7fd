"""`repeat`: a source that is read again each time it ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any

from raceway.errors import ConfigError
from raceway.flow._graph import Node, OperatorContext, Shard
from raceway.flow._sources import SourceFunction, read_once

_EXACT_HINTS = tuple(map(type, (iter([0]), iter((0,)), iter(""), iter(range(0)))))
_NOTHING = object()


class RepeatedSource(SourceFunction):
    """A source that is opened `times` times, or for ever. It ends when there is nothing to repeat."""

    def __init__(self, source: SourceFunction, times: int | None) -> None:
        self._source, self._times = source, times
        self.function, self.requested, self.keeps_position = source.function, source.requested, False

    def for_shard(self, shard: Shard) -> SourceFunction:
        return RepeatedSource(self._source.for_shard(shard), self._times)

    def open(self, context: OperatorContext, position: int) -> Iterator[Any]:
        return self._passes(context, position)

    def _passes(self, context: OperatorContext, position: int) -> Iterator[Any]:
        done = 0
        while self._times is None or done < self._times:
            items = self._source.open(context, 0)
            length = length_hint(items) if isinstance(items, _EXACT_HINTS) else 0
            if length and position >= length:  # skip whole passes without reading them
                done, position = done + position // length, position % length
                continue
            skipped = sum(1 for _ in islice(items, position))
            position, done = position - skipped, done + 1
            first = next(items, _NOTHING)
            if first is not _NOTHING:
                yield first
                yield from items
            elif not skipped:
                return


def repeated_source(node: Node, times: int | None) -> Node:
    """Return the node of a source, repeated."""
    source = node.spec.implementation
    if node.parents or not isinstance(source, SourceFunction) or source.keeps_position:
        raise ConfigError(
            f"repeat() reads a source again, so it follows from_range, from_items or from_iterators, not {node}."
        )
    if isinstance(source.function, partial) and source.function.func is read_once:
        raise ConfigError(
            "an iterator can be read only once, so it cannot be repeated. Pass a function that returns it instead."
        )
    label = f"{node.label.removesuffix(')')}, repeat{'' if times is None else f'={times}'})"
    return Node(label, RepeatedSource(source, times), (), actors=node.actors, **node.spec.settings)
