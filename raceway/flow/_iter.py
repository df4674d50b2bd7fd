"""`Iter`: a sequential stream, pulled by the driver. Building one runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from raceway.checks import check_choice, check_int, unknown_name
from raceway.engine.base import Actor
from raceway.errors import ConfigError
from raceway.flow._driver_stages import Branch, OffloadedForEach, Queue, Split, Union, UnionInput
from raceway.flow._graph import Node, Source, requested_parameters
from raceway.flow._operators import ForEach
from raceway.flow._run import Run
from raceway.flow._sources import SourceFunction, read_once
from raceway.flow._stream import Stream, T_co
from raceway.flow.explain import callable_name
from raceway.flow.rate_limits import RateLimit, RateLimiter, Weight, WeightedTurns, branch_weights

U = TypeVar("U")


class Iter(Stream[T_co]):
    """A sequential stream. `for x in flow`, `next(flow)` or, in a debugger, `flow.step()` runs it.

    Every `iter(flow)` starts from the source, independent of other runs. So do its operators: each run has its own
    state of the callable objects that were passed, as far as `Run.state` would save it, and starts from the state that
    they had at the first run. Plain data that was passed to an operator's constructor, such as a list, is part of it.
    What functions and methods change, and what operators only refer to, such as a learner or an actor, is shared by all
    runs; so is an operator with the attribute `shared_by_runs = True`. An attribute that the program sets between two
    runs is for later runs too; one that it sets before a run has ended (as that behind `next(flow)`), for that alone.

    >>> class Sum:
    ...     total = 0
    ...     def __call__(self, x):
    ...         self.total += x
    ...         return self.total
    >>> flow = Iter.from_range(4).for_each(Sum())
    >>> list(flow), list(flow), list(zip(flow, flow))[-1]
    ([0, 1, 3, 6], [0, 1, 3, 6], (6, 6))
    """

    if TYPE_CHECKING:

        def flat_map(self, function: Callable[[T_co], Iterable[U]]) -> Iter[U]: ...
        def combine(self, function: Callable[[T_co], Iterable[U]]) -> Iter[U]: ...
        def transform(self, function: Callable[[Iterator[T_co]], Iterable[U]]) -> Iter[U]: ...
        def flatten(self: Iter[Iterable[U]]) -> Iter[U]: ...
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

    def start(self, *, measure: bool = False, state: dict[str, Any] | None = None, wait: bool = False) -> Run[T_co]:
        """Start a run.

        Args:
            measure: measure the size and staleness of items at every operator.
            state: a state to continue from; see `restore`.
            wait: when the run is closed, wait for the current call of operators with `on="thread"`: for those whose
                objects, such as a learner, are used afterwards.

        >>> next(Iter.from_range(3).start())
        0
        """
        return Run(self._node, measure=measure, state=state, wait=wait)

    __iter__ = start

    def __next__(self) -> T_co:
        self._own_run = self._own_run or self.start()
        return next(self._own_run)

    step = __next__

    def next(self, timeout: float | None = None) -> T_co:
        """Return the next item, like `next(flow)`; raise WaitTimeout if there is none in time. See `Run.next`.

        >>> Iter.from_range(3).next(timeout=1)
        0
        """
        self._own_run = self._own_run or self.start()
        return self._own_run.next(timeout)

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
    weights: Sequence[Weight] | Mapping[str, Weight] | None = None,
    limits: Sequence[RateLimit] = (),
    emit: Sequence[str] | None = None,
    **named: Iter[U],
) -> Iter[U]:
    """Read the branches in turn, as many items in a row from each as its weight says.

    Args:
        *branches: branches that get the names "0", "1" and so on. One that has ended is left out.
        weights: by name or in order; the default is 1. With 0.5, an item is taken in every second cycle; with `"*"`,
            all items that are ready, without waiting for more. Use it for a branch that waits for actors or a thread:
            one that always has a next item would leave the others no turn.
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
