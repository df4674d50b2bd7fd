"""`Iter`: a sequential stream, pulled by the driver. Building one runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from raceway.checks import check_choice, check_int, unknown_name
from raceway.engine.base import Actor
from raceway.errors import ConfigError
from raceway.flow._driver_stages import Branch, OffloadedForEach, Queue, Split, Union, UnionInput
from raceway.flow._graph import Node, Source, requested_parameters
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
from raceway.flow._run import Run
from raceway.flow._sources import SourceFunction, read_once
from raceway.flow.explain import Explainable, callable_name
from raceway.flow.rate_limits import RateLimit, RateLimiter, WeightedTurns, branch_weights

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
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


class Iter(Stream[T_co]):
    """A sequential stream. `for x in flow`, `next(flow)` or, in a debugger, `flow.step()` runs it.

    Every `iter(flow)` starts from the source, independent of other runs.
    """

    if TYPE_CHECKING:

        def flat_map(self, function: Callable[[T_co], Iterable[U]]) -> Iter[U]: ...
        def combine(self, function: Callable[[T_co], Iterable[U]]) -> Iter[U]: ...
        def batch(self, size: int) -> Iter[list[T_co]]: ...
        def zip_with_source(self) -> Iter[tuple[Source, T_co]]: ...

    _own_run: Run[T_co] | None = None  # the run behind `next(flow)` and `flow.step()`

    @staticmethod
    def from_items(items: Iterable[U] | Callable[[], Iterable[U]]) -> Iter[U]:
        """Stream the items of a collection, of an iterator (once only), or of the iterable that a function returns.

        >>> list(Iter.from_items("ab")), list(Iter.from_items(lambda: (x * x for x in range(3))))
        (['a', 'b'], [0, 1, 4])
        """
        make_iterable: Any = items if callable(items) else items.__iter__
        function = partial(read_once, [items]) if isinstance(items, Iterator) else make_iterable
        return Iter(Node(f"from_items({callable_name(items)})", SourceFunction(function, parallel=False), ()))

    @staticmethod
    def from_range(*args: int) -> Iter[int]:
        """Stream the numbers of `range(*args)`.

        >>> list(Iter.from_range(2, 5))
        [2, 3, 4]
        """
        source = SourceFunction(range(*args).__iter__, parallel=False)
        return Iter(Node(f"from_range({', '.join(map(str, args))})", source, ()))

    def for_each(self, function: Callable[[T_co], U], *, on: str | Actor = "driver", queue: int = 2) -> Iter[U]:
        """Apply a function to every item.

        Args:
            function: called with an item; its result is the new item.
            on: `driver`, `thread` (a dedicated one), or an actor. On a thread or actor the function, for example a
                learner, works while the driver continues; items stay in order. An actor also holds its state.
            queue: on a thread or actor, the number of items that may be on their way to it and back.

        >>> list(Iter.from_range(3).for_each(lambda x: 2 * x))
        [0, 2, 4]
        """
        if on == "driver":
            return self._add_function(ForEach, "for_each", function)  # type: ignore[no-any-return]
        if on != "thread" and not isinstance(on, Actor):
            raise unknown_name("place for an operator", on, ("driver", "thread"), "Or pass an actor of an engine.")
        actor = on if isinstance(on, Actor) else None
        requested_parameters(function, parallel=actor is not None)
        settings: Any = {"function": function, "max_in_flight": check_int("queue", queue), "actor": actor}
        label = f"for_each({callable_name(function)}, on={actor.name if actor else on}, queue={queue})"
        return Iter(Node(label, OffloadedForEach, [self._node], actors=[actor] if actor else (), **settings))

    def flatten(self: Iter[Iterable[U]]) -> Iter[U]:
        """Pass on the elements of every item, one by one; those of a batch or round keep their own envelopes.

        >>> list(Iter.from_items([[1, 2], [3]]).flatten())
        [1, 2, 3]
        """
        return self._add(Flatten, "flatten")  # type: ignore[no-any-return]

    def queue(self, size: int) -> Iter[T_co]:
        """Prefetch up to `size` items: they are read as soon as they are available.

        >>> list(Iter.from_range(3).queue(2))
        [0, 1, 2]
        """
        return Iter(Node(f"queue({size})", Queue, [self._node], size=check_int("size", size)))

    def split(self, *names: str, buffer: int = 1000) -> tuple[Iter[T_co], ...]:
        """Pass every item to every branch. The default names of the branches are `a` and `b`.

        A branch that is behind is served first. A branch may run ahead of another by at most `buffer` items.

        >>> low, high = Iter.from_range(4).split("low", "high")
        >>> list(union(low.filter(lambda x: x < 2), high.for_each(lambda x: 10 + x)))
        [0, 10, 1, 11, 12, 13]
        """
        names = names or ("a", "b")
        if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"the branches of a split need distinct names, not {names!r}")
        make_split = partial(Split, names=names, buffer=check_int("buffer", buffer))
        split = Node(f"split({', '.join(names)})", make_split, [self._node])
        return tuple(Iter(Node(f"branch({name})", partial(Branch, name=name), [split])) for name in names)

    def start(self, *, measure: bool = False, state: dict[str, Any] | None = None) -> Run[T_co]:
        """Start a run; with `measure`, the size and staleness of items are measured at every operator.

        >>> next(Iter.from_range(3).start())
        0
        """
        return Run(self._node, measure=measure, state=state)

    __iter__ = start

    def __next__(self) -> T_co:
        self._own_run = self._own_run or self.start()
        return next(self._own_run)

    step = __next__

    def restore(self, state: dict[str, Any]) -> Run[T_co]:
        """Return a run that continues from a state of `Run.state`. `next(flow)` continues it too.

        >>> run = iter(flow := Iter.from_range(5).batch(2))
        >>> next(run)
        [0, 1]
        >>> list(flow.restore(run.state()))
        [[2, 3], [4]]
        """
        self._own_run = self.start(state=state)
        return self._own_run


def union(
    *branches: Iter[U],
    weights: Sequence[float] | Mapping[str, float] | None = None,
    limits: Sequence[RateLimit] = (),
    emit: Sequence[str] | None = None,
    **named: Iter[U],
) -> Iter[U]:
    """Read the branches in turn, as many items in a row from each as its weight says.

    Args:
        *branches: branches that get the names "0", "1" and so on. One that has ended is left out.
        weights: by name or in order; the default is 1. With 0.5, an item is taken in every second cycle.
        limits: keep branches from running ahead of others.
        emit: names of the branches whose items are passed on; the others are only read. The union ends with these.
        **named: more branches, with their names.

    >>> list(union(Iter.from_range(4), Iter.from_items("ab"), weights=[2, 1]))
    [0, 1, 'a', 2, 3, 'b']
    """
    return _union("union", branches, named, weights, limits, emit)


def union_async(
    *branches: Iter[U], limits: Sequence[RateLimit] = (), emit: Sequence[str] | None = None, **named: Iter[U]
) -> Iter[U]:
    """Read whichever branch is ready, fairly. For the arguments see `union`.

    >>> sorted(union_async(Iter.from_range(3), Iter.from_range(7, 9)))
    [0, 1, 2, 7, 8]
    """
    return _union("union_async", branches, named, None, limits, emit)


def _union(kind: str, branches: Any, named: Any, weights: Any, limits: Any, emit: Any) -> Iter[Any]:
    inputs: dict[str, Iter[Any]] = {str(index): branch for index, branch in enumerate(branches)} | named
    wrong = [branch for branch in inputs.values() if not isinstance(branch, Iter)]
    if wrong or not inputs:
        raise ConfigError(f"{kind} takes sequential streams (gather a ParIter first), not {wrong or 'nothing'}")
    weight = branch_weights(list(inputs), weights, kind)
    for name in [*(emit or ()), *(name for limit in limits for name in (limit.branch, limit.per))]:
        check_choice(f"branch of {kind}", name, inputs)

    def make_union(run: Any, node: Node) -> Union:
        parents = zip(inputs, node.parents, strict=True)
        stages = [UnionInput(name, run.stage(parent), not emit or name in emit) for name, parent in parents]
        turns, limiter = WeightedTurns([*weight.values()]), RateLimiter(limits)
        return Union(run, node, stages, turns, limiter, in_turn=kind == "union")

    label = f"{kind}({', '.join(f'{name}: {weight[name]}' if weights else name for name in inputs)})"
    return Iter(Node(label, make_union, [branch._node for branch in inputs.values()], inputs=list(inputs)))
