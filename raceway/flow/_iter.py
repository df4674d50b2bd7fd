"""`Iter`: a sequential stream, pulled by the driver. Building one runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from raceway.checks import check_choice, check_int, unknown_name
from raceway.engine.base import Actor
from raceway.errors import ConfigError
from raceway.flow._graph import Node, Source, wanted
from raceway.flow._joins import Branch, Input, Moved, Queue, Split, Union
from raceway.flow._operators import Batch, Combine, Filter, FlatMap, Flatten, ForEach, Op, Shuffle, Take, with_source
from raceway.flow._run import Run
from raceway.flow._shard import Origin, once
from raceway.flow.explain import Explained, name_of
from raceway.flow.rate_limits import RateLimit, RateLimiter, WeightedTurns, branch_weights

T_co = TypeVar("T_co", covariant=True)
U = TypeVar("U")
StreamT = TypeVar("StreamT", bound="Stream[Any]")


class Stream(Explained, Generic[T_co]):
    """What both kinds of stream are: the end of a plan, to which more can be added.

    An operator's function may be any callable. A parameter that it declares with the default `given` it is given:
    `envelope`, what is known of the item; on shards also `actor`, the object it runs beside, and `shard`.
    """

    def __init__(self, node: Node) -> None:
        self._node = node

    def _add(self, op: type[Op], label: str, **settings: Any) -> Any:
        return type(self)(Node(label, op, [self._node], parallel=self._node.parallel, **settings))

    def _call(self, op: type[Op], kind: str, function: Callable[..., Any]) -> Any:
        wanted(function, self._node.parallel)
        return self._add(op, f"{kind}({name_of(function)})", function=function)

    def filter(self: StreamT, function: Callable[[Any], object]) -> StreamT:
        """Keep the items for which the function is true.

        >>> list(Iter.from_range(6).filter(lambda x: x % 2))
        [1, 3, 5]
        """
        return self._call(Filter, "filter", function)  # type: ignore[no-any-return]

    def take(self: StreamT, count: int) -> StreamT:
        """End after so many items; of a ParIter, after so many of every shard.

        >>> list(Iter.from_range(9).take(2))
        [0, 1]
        """
        return self._add(Take, f"take({count})", count=check_int("count", count, 0))  # type: ignore[no-any-return]

    def shuffle(self: StreamT, buffer: int, *, seed: int = 0) -> StreamT:
        """Hold so many items, and give one of them by chance for every further one.

        >>> sorted(Iter.from_range(5).shuffle(3, seed=1))
        [0, 1, 2, 3, 4]
        """
        label = f"shuffle({buffer}, seed={seed})"
        return self._add(Shuffle, label, size=check_int("buffer", buffer), seed=check_int("seed", seed, 0))  # type: ignore[no-any-return]

    # What these return depends on the kind of stream: it is said there.

    def flat_map(self, function: Callable[[T_co], Iterable[Any]]) -> Any:
        """Give the items of what the function returns for every item.

        >>> list(Iter.from_range(4).flat_map(range))
        [0, 0, 1, 0, 1, 2]
        """
        return self._call(FlatMap, "flat_map", function)

    def combine(self, function: Callable[[T_co], Iterable[Any]]) -> Any:
        """As `flat_map`, for a function that holds items back: their envelopes go with what it gives in the end.

        At the end of the stream the function's `finish()` is called, if it has one.

        >>> held = []
        >>> list(Iter.from_range(5).combine(lambda x: held.append(x) or ([sum(held)] if x % 2 else [])))
        [1, 6]
        """
        return self._call(Combine, "combine", function)

    def batch(self, size: int) -> Any:
        """Put so many items (of one shard) into a list; the last list may be shorter.

        >>> list(Iter.from_range(5).batch(2))
        [[0, 1], [2, 3], [4]]
        """
        return self._add(Batch, f"batch({size})", size=check_int("size", size))

    def zip_with_source(self) -> Any:
        """Pair every item with where it came from. On shards the source has no handle of its actor.

        >>> [(source.shard, x) for source, x in ParIter.from_range(3, actors).gather_async().zip_with_source()]
        [(0, 0), (1, 1), (0, 2)]
        """
        return self._add(ForEach, "zip_with_source", function=with_source)


class Iter(Stream[T_co]):
    """A sequential stream: `for x in flow`, `next(flow)` or, in a debugger, `flow.step()` runs it.

    Every `iter(flow)` starts anew from the source, and knows nothing of others that are under way.
    """

    if TYPE_CHECKING:

        def flat_map(self, function: Callable[[T_co], Iterable[U]]) -> Iter[U]: ...
        def combine(self, function: Callable[[T_co], Iterable[U]]) -> Iter[U]: ...
        def batch(self, size: int) -> Iter[list[T_co]]: ...
        def zip_with_source(self) -> Iter[tuple[Source, T_co]]: ...

    _own: Run[T_co] | None = None  # the one that `next` and `step` drive

    @staticmethod
    def from_items(items: Iterable[U] | Callable[[], Iterable[U]]) -> Iter[U]:
        """Give the items of a collection, of an iterator (once only), or of what a function returns each time.

        >>> list(Iter.from_items("ab")), list(Iter.from_items(lambda: (x * x for x in range(3))))
        (['a', 'b'], [0, 1, 4])
        """
        many: Any = items if callable(items) else items.__iter__
        make = partial(once, [items]) if isinstance(items, Iterator) else many
        return Iter(Node(f"from_items({name_of(items)})", Origin(make, parallel=False), ()))

    @staticmethod
    def from_range(*args: int) -> Iter[int]:
        """Give the numbers that `range` gives.

        >>> list(Iter.from_range(2, 5))
        [2, 3, 4]
        """
        return Iter(Node(f"from_range({', '.join(map(str, args))})", Origin(range(*args).__iter__, parallel=False), ()))

    def for_each(self, function: Callable[[T_co], U], *, on: str | Actor = "driver", queue: int = 2) -> Iter[U]:
        """Apply a function to every item.

        With `on="thread"`, or an actor, it runs there while the driver goes on: a learner. So many items (`queue`) may
        be on their way to it and back; their order stays. On an actor it lives and keeps its state there.

        >>> list(Iter.from_range(3).for_each(lambda x: 2 * x))
        [0, 2, 4]
        """
        if on == "driver":
            return self._call(ForEach, "for_each", function)  # type: ignore[no-any-return]
        if on != "thread" and not isinstance(on, Actor):
            raise unknown_name("place for an operator", on, ("driver", "thread"), "Or give an actor of an engine.")
        actor = on if isinstance(on, Actor) else None
        wanted(function, parallel=actor is not None)
        settings: Any = {"function": function, "room": check_int("queue", queue), "actor": actor}
        label = f"for_each({name_of(function)}, on={actor.name if actor else on}, queue={queue})"
        return Iter(Node(label, Moved, [self._node], actors=[actor] if actor else (), **settings))

    def flatten(self: Iter[Iterable[U]]) -> Iter[U]:
        """Give the items of every item; those of a batch or round with their own envelopes.

        >>> list(Iter.from_items([[1, 2], [3]]).flatten())
        [1, 2, 3]
        """
        return self._add(Flatten, "flatten")  # type: ignore[no-any-return]

    def queue(self, size: int) -> Iter[T_co]:
        """Take in up to so many items as soon as they are there, whether or not they are asked for yet.

        >>> list(Iter.from_range(3).queue(2))
        [0, 1, 2]
        """
        return Iter(Node(f"queue({size})", Queue, [self._node], size=check_int("size", size)))

    def split(self, *names: str, buffer: int = 1000) -> tuple[Iter[T_co], ...]:
        """Give every item to every branch, named or by default `a` and `b`.

        A branch that is behind is served first. One may run ahead of another by at most `buffer` items.

        >>> low, high = Iter.from_range(4).split("low", "high")
        >>> list(union(low.filter(lambda x: x < 2), high.for_each(lambda x: 10 + x)))
        [0, 10, 1, 11, 12, 13]
        """
        names = names or ("a", "b")
        if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"the branches of a split need names, each its own, not {names!r}")
        make = partial(Split, names=names, buffer=check_int("buffer", buffer))
        split = Node(f"split({', '.join(names)})", make, [self._node])
        return tuple(Iter(Node(f"branch({name})", partial(Branch, name=name), [split])) for name in names)

    def start(self, *, measure: bool = False, state: dict[str, Any] | None = None) -> Run[T_co]:
        """Begin an iteration; `measure` has it look at the size and age of every item too.

        >>> next(Iter.from_range(3).start())
        0
        """
        return Run(self._node, measure=measure, state=state)

    __iter__ = start

    def __next__(self) -> T_co:
        self._own = self._own or self.start()
        return next(self._own)

    step = __next__

    def restore(self, state: dict[str, Any]) -> Run[T_co]:
        """Return an iteration that goes on from what `Run.state` returned; `next(flow)` goes on with it too.

        >>> run = iter(flow := Iter.from_range(5).batch(2))
        >>> next(run)
        [0, 1]
        >>> list(flow.restore(run.state()))
        [[2, 3], [4]]
        """
        self._own = self.start(state=state)
        return self._own


def union(
    *branches: Iter[U],
    weights: Sequence[float] | Mapping[str, float] | None = None,
    limits: Sequence[RateLimit] = (),
    emit: Sequence[str] | None = None,
    **named: Iter[U],
) -> Iter[U]:
    """Take from the branches in turn: of each as many items in a row as its weight says.

    A weight of 0.5 takes one item every second time; the default is 1. A branch that has ended leaves. Those without a
    name are "0", "1" and so on. If `emit` names some, items of others are taken only, and it ends when the named have.

    >>> list(union(Iter.from_range(4), Iter.from_items("ab"), weights=[2, 1]))
    [0, 1, 'a', 2, 3, 'b']
    """
    return _union("union", branches, named, weights, limits, emit)


def union_async(
    *branches: Iter[U], limits: Sequence[RateLimit] = (), emit: Sequence[str] | None = None, **named: Iter[U]
) -> Iter[U]:
    """Take whatever is ready from any branch, fairly; see `union`.

    >>> sorted(union_async(Iter.from_range(3), Iter.from_range(7, 9)))
    [0, 1, 2, 7, 8]
    """
    return _union("union_async", branches, named, None, limits, emit)


def _union(kind: str, branches: Any, named: Any, weights: Any, limits: Any, emit: Any) -> Iter[Any]:
    inputs: dict[str, Iter[Any]] = {str(place): one for place, one in enumerate(branches)} | named
    wrong = [one for one in inputs.values() if not isinstance(one, Iter)]
    if wrong or not inputs:
        raise ConfigError(f"{kind} takes sequential streams (gather a ParIter first), not {wrong or 'nothing'}")
    weight = branch_weights(list(inputs), weights, kind)
    for name in [*(emit or ()), *(name for one in limits for name in (one.branch, one.per))]:
        check_choice(f"branch of {kind}", name, inputs)

    def make(run: Any, node: Node) -> Union:
        rows = zip(inputs, node.parents, strict=True)
        made = [Input(name, run.stage(parent), not emit or name in emit) for name, parent in rows]
        return Union(run, node, made, WeightedTurns([*weight.values()]), RateLimiter(limits), in_turn=kind == "union")

    label = f"{kind}({', '.join(f'{name}: {weight[name]}' if weights else name for name in inputs)})"
    return Iter(Node(label, make, [one._node for one in inputs.values()], inputs=list(inputs)))
