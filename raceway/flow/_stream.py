"""`Stream`: the base of both kinds of stream, with the operators that work on shards and in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from raceway.checks import check_int
from raceway.errors import ConfigError
from raceway.flow._graph import Node, requested_parameters
from raceway.flow._operators import (
    BatchItems,
    Combine,
    Filter,
    FlatMap,
    Flatten,
    ForEach,
    Operator,
    Shuffle,
    Take,
    with_source,
)
from raceway.flow._repeat import repeated_source
from raceway.flow._transform import Transform
from raceway.flow.explain import Explainable, callable_name

T_co = TypeVar("T_co", covariant=True)
StreamT = TypeVar("StreamT", bound="Stream[Any]")


class Stream(Explainable, Generic[T_co]):
    """Base of both kinds of stream: the last node of a plan, with methods that add more.

    An operator's function may be any callable. Parameters with the default `injected` are filled in for it: `envelope`,
    the metadata of the item; and on shards `actor`, the object that it runs beside, and `shard`.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def _add(self, operator: type[Operator], label: str, **settings: Any) -> Any:
        return type(self)(Node(label, operator, [self._node], parallel=self._node.parallel, **settings))

    def _add_function(self, operator: type[Operator], kind: str, function: Callable[..., Any]) -> Any:
        requested_parameters(function, self._node.parallel)
        return self._add(operator, f"{kind}({callable_name(function)})", function=function)

    def filter(self: StreamT, function: Callable[[Any], object]) -> StreamT:
        """Keep the items for which the function returns true.

        >>> list(Iter.from_range(6).filter(lambda x: x % 2))
        [1, 3, 5]
        """
        return self._add_function(Filter, "filter", function)  # type: ignore[no-any-return]

    def take(self: StreamT, count: int) -> StreamT:
        """End after `count` items; for a ParIter, after `count` items of every shard.

        >>> list(Iter.from_range(9).take(2))
        [0, 1]
        """
        return self._add(Take, f"take({count})", count=check_int("count", count, 0))  # type: ignore[no-any-return]

    def shuffle(self: StreamT, buffer: int, *, seed: int = 0) -> StreamT:
        """Shuffle with a buffer of `buffer` items: each new item replaces a random one, which is passed on.

        >>> sorted(Iter.from_range(5).shuffle(3, seed=1))
        [0, 1, 2, 3, 4]
        """
        label = f"shuffle({buffer}, seed={seed})"
        return self._add(Shuffle, label, size=check_int("buffer", buffer), seed=check_int("seed", seed, 0))  # type: ignore[no-any-return]

    # The subclasses declare the return types of these, which depend on the kind of stream.

    def flat_map(self, function: Callable[[T_co], Iterable[Any]]) -> Any:
        """Apply a function that returns several items, and pass these on one by one.

        >>> list(Iter.from_range(4).flat_map(range))
        [0, 0, 1, 0, 1, 2]
        """
        return self._add_function(FlatMap, "flat_map", function)

    def combine(self, function: Callable[[T_co], Iterable[Any]]) -> Any:
        """Like `flat_map`, for a function that makes a result from several items: it gets their merged envelopes.

        At the end of the stream the function's `finish()` is called, if it has one.

        >>> held = []
        >>> list(Iter.from_range(5).combine(lambda x: held.append(x) or ([sum(held)] if x % 2 else [])))
        [1, 6]
        """
        return self._add_function(Combine, "combine", function)

    def transform(self, function: Callable[[Iterator[T_co]], Iterable[Any]]) -> Any:
        """Apply a generator function to the whole stream (of a shard): it reads items and yields others.

        It can read ahead, end the stream, and release resources in `finally`. To save the state of a run, pass an
        object whose call continues from its attributes; local variables cannot be saved. Where the stream must be
        waited for, it runs on a thread in turn with the driver, which takes longer than `combine`.

        >>> def changes(items):
        ...     last = None
        ...     for x in items:
        ...         if x != last:
        ...             yield x
        ...         last = x
        >>> list(Iter.from_items("aabbba").transform(changes))
        ['a', 'b', 'a']
        """
        if "envelope" in requested_parameters(function, self._node.parallel):
            raise ConfigError(f"{callable_name(function)} asks for 'envelope', but transform() passes it a stream.")
        return self._add_function(Transform, "transform", function)

    def flatten(self: Stream[Iterable[Any]]) -> Any:
        """Pass on the elements of every item, one by one; those of a batch or round keep their own envelopes.

        >>> list(Iter.from_items([[1, 2], [3]]).flatten())
        [1, 2, 3]
        """
        return self._add(Flatten, "flatten")

    def repeat(self: StreamT, times: int | None = None) -> StreamT:
        """Read a source again each time it ends: `times` times in all, or for ever. Follows the source directly.

        >>> list(Iter.from_range(2).repeat(2)), list(Iter.from_items("ab").repeat().take(3))
        ([0, 1, 0, 1], ['a', 'b', 'a'])
        """
        times = None if times is None else check_int("times", times)
        return type(self)(repeated_source(self._node, times))

    def batch(self, size: int) -> Any:
        """Collect `size` items (of one shard) into a list; the last list may be shorter.

        >>> list(Iter.from_range(5).batch(2))
        [[0, 1], [2, 3], [4]]
        """
        return self._add(BatchItems, f"batch({size})", size=check_int("size", size))

    def zip_with_source(self) -> Any:
        """Pair every item with its source. On shards, sources have no actor handle.

        >>> [(source.shard, x) for source, x in ParIter.from_range(3, actors).gather_async().zip_with_source()]
        [(0, 0), (1, 1), (0, 2)]
        """
        return self._add(ForEach, "zip_with_source", function=with_source)
