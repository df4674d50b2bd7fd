"""Random plans over finite sources: they end, lose and repeat no item, and give the same items on all engines."""

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.flow import Iter, ParIter, union, union_async
from tests.flow.actors import Counter, HoldBack
from tests.flow.module_fixtures import module_actors, module_engine, skip_leak_check  # noqa: F401

MAX_SIZE = 17

MakeFlow = Callable[[list[Actor]], Iter[Any]]
"""Returns a flow of integers over actors."""


class Case:
    """A flow, the items that it must produce in any order, and whether their order is always the same."""

    def __init__(self, make_flow: MakeFlow, expected: list[int], ordered: bool, text: str) -> None:
        self.make_flow = make_flow
        self.expected = expected
        self.ordered = ordered
        self.text = text

    def __repr__(self) -> str:
        return self.text

    def then(
        self, add: Callable[[Iter[Any]], Iter[Any]], expected: list[int], text: str, ordered: bool = True
    ) -> "Case":
        return Case(
            lambda actors: add(self.make_flow(actors)), expected, self.ordered and ordered, f"{self.text}.{text}"
        )


class ReadAhead:
    """A transform that reads `size` items ahead of those it yields, and keeps them in its state."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.items: list[int] = []

    def __call__(self, items: Iterator[int]) -> Iterator[int]:
        for item in items:
            self.items.append(item)
            if len(self.items) > self.size:
                yield self.items.pop(0)
        while self.items:
            yield self.items.pop(0)


def plus_one(value: int) -> int:
    return value + 1


def is_even(value: int) -> bool:
    return value % 2 == 0


def repeat(value: int) -> list[int]:
    return [value] * (value % 3)


def identity(value: int) -> int:
    return value


def sharded(
    count: int, shards: int, ops: list[tuple[str, int]]
) -> tuple[Callable[[list[Actor]], ParIter[int]], list[int], str]:
    """Return a function that creates a ParIter with these operators, its expected items, and its description."""
    expected = list(range(count))
    for op in [op for op, _ in ops if op != "repartition"]:
        expected = [result for x in expected for result in EXPECTED[op](x)]

    def make(actors: list[Actor]) -> ParIter[int]:
        stream = ParIter.from_range(count, actors, num_shards=shards)
        for op, size in ops:
            stream = {
                "plus": lambda s: s.for_each(plus_one),
                "even": lambda s: s.filter(is_even),
                "repeat": lambda s: s.flat_map(repeat),
                "hold": lambda s, size=size: s.combine(HoldBack(size)),
                "batch": lambda s, size=size: s.batch(size).flat_map(list),
                "shuffle": lambda s, size=size: s.shuffle(size, seed=size),
                "transform": lambda s, size=size: s.transform(ReadAhead(size)),
                "repartition": lambda s, size=size: s.repartition(size),
            }[op](stream)
        return stream

    return make, expected, f"range({count}, shards={shards}).{'.'.join(f'{op}{size}' for op, size in ops)}"


EXPECTED: dict[str, Callable[[int], list[int]]] = {
    "plus": lambda x: [x + 1],
    "even": lambda x: [x] * (x % 2 == 0),
    "repeat": repeat,
    "hold": lambda x: [x],
    "batch": lambda x: [x],
    "shuffle": lambda x: [x],
    "transform": lambda x: [x],
}
OPS = st.lists(st.tuples(st.sampled_from([*sorted(EXPECTED), "repartition"]), st.integers(1, 5)), max_size=4)


@st.composite
def sources(draw: st.DrawFn) -> Case:
    count = draw(st.integers(0, MAX_SIZE))
    make, expected, text = sharded(count, draw(st.integers(1, 4)), draw(OPS))
    if draw(st.booleans()):
        return Case(lambda actors: make(actors).gather_sync().flatten(), expected, True, f"{text}.sync")
    num_async = draw(st.integers(1, 3))
    return Case(lambda actors: make(actors).gather_async(num_async), expected, False, f"{text}.async{num_async}")


@st.composite
def extended(draw: st.DrawFn, children: st.SearchStrategy[Case]) -> Case:
    kind = draw(st.sampled_from([*sorted(EXPECTED), "queue", "thread", "union", "split"]))
    case, size = draw(children), draw(st.integers(1, 5))
    if kind in EXPECTED:
        expected = [result for x in case.expected for result in EXPECTED[kind](x)]
        adds: dict[str, Callable[[Iter[Any]], Iter[Any]]] = {
            "plus": lambda it: it.for_each(plus_one),
            "even": lambda it: it.filter(is_even),
            "repeat": lambda it: it.flat_map(repeat),
            "hold": lambda it: it.combine(HoldBack(size)),
            "batch": lambda it: it.batch(size).flatten(),
            "shuffle": lambda it: it.shuffle(size, seed=size),
            "transform": lambda it: it.transform(ReadAhead(size)),
        }
        return case.then(adds[kind], expected, f"{kind}{size}")
    if kind == "queue":
        return case.then(lambda it: it.queue(size), case.expected, f"queue{size}")
    if kind == "thread":
        return case.then(lambda it: it.for_each(identity, on="thread", queue=size), case.expected, f"thread{size}")
    if kind == "union":
        other, weights = draw(children), [draw(st.sampled_from([1, 2, 0.5, 1.25, "*"])) for _ in range(2)]
        in_turn = draw(st.booleans())

        def join(actors: list[Actor]) -> Iter[Any]:
            branches = case.make_flow(actors), other.make_flow(actors)
            return union(*branches, weights=weights) if in_turn else union_async(*branches)

        ordered = case.ordered and other.ordered and in_turn and "*" not in weights
        return Case(
            join, case.expected + other.expected, ordered, f"union{weights if in_turn else '~'}({case}, {other})"
        )
    count = draw(st.integers(2, 3))

    def split_and_join(it: Iter[Any]) -> Iter[Any]:
        branches = it.split(*"abc"[:count], buffer=1000)
        return union_async(*(branch.batch(size + index).flatten() for index, branch in enumerate(branches)))

    return case.then(split_and_join, case.expected * count, f"split{count}x{size}", ordered=False)


CASES = st.recursive(sources(), extended, max_leaves=3)


def check(case: Case, actors: list[Actor]) -> None:
    items = list(case.make_flow(actors))
    assert Tally(items) == Tally(case.expected)
    if case.ordered:
        with make_engine("inline") as inline:
            assert items == list(case.make_flow([inline.spawn(Counter)]))


# No time limits: they would depend on the machine.
COMMON: dict[str, Any] = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


def test_random_plans_produce_every_item_once(engine: Engine, actors: list[Actor]) -> None:
    @settings(max_examples=200 if engine.name == "inline" else 25, **COMMON)
    @given(CASES)
    def run(case: Case) -> None:
        check(case, actors)

    run()


def test_restored_random_plans_produce_the_remaining_items(engine: Engine, actors: list[Actor]) -> None:
    """The items before a state was saved and those after it is restored are together all items."""

    @settings(max_examples=100 if engine.name == "inline" else 15, **COMMON)
    @given(CASES, st.integers(0, 12))
    def run(case: Case, num_before: int) -> None:
        before = []
        flow = case.make_flow(actors)
        with flow.start() as first:
            while len(before) < num_before:
                try:
                    before.append(next(first))
                except StopIteration:
                    return
            state = first.state()
        after = list(case.make_flow(actors).restore(state))
        assert Tally(before + after) == Tally(case.expected)
        if case.ordered:
            with make_engine("inline") as inline:
                assert before + after == list(case.make_flow([inline.spawn(Counter)]))

    run()
