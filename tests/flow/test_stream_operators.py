"""Operators on whole streams: transform, flatten, repeat; turns with the weight "*"; and `next` with a timeout."""

import itertools
import pickle
import threading
from bdb import BdbQuit
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.errors import ConfigError, OperatorError, WaitTimeout
from raceway.flow import Iter, ParIter, RateLimit, Shard, create, injected, union, union_async
from tests.conftest import GENEROUS, eventually
from tests.engine.conftest import engines
from tests.flow.actors import Counter
from tests.flow.module_fixtures import module_actors, module_engine, skip_leak_check  # noqa: F401

# Transform.


def changes(items: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield every item with the one before it."""
    last = 0
    for item in items:
        yield last, item
        last = item


def blocks_of_two(items: Iterator[int]) -> Iterator[list[int]]:
    while block := list(itertools.islice(items, 2)):
        yield block
        yield [sum(block)]


class Pairwise:
    """Like `changes`, with its state in an attribute."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self, items: Iterator[int]) -> Iterator[tuple[int, int]]:
        for item in items:
            pair, self.last = (self.last, item), item
            yield pair


def test_transform_in_the_driver_and_on_shards(actors: list[Actor]) -> None:
    pairs = [(0, 0), (0, 1), (1, 2), (2, 3), (3, 4)]
    for make in (lambda: changes, Pairwise):
        for numbers in (Iter.from_range(5), ParIter.from_range(5, actors).gather_sync().flatten()):
            flow = numbers.transform(make())
            assert list(flow) == list(flow) == pairs
        on_shards = ParIter.from_range(5, actors).transform(make()).gather_sync()
        assert list(on_shards) == list(on_shards) == [[(0, 0), (0, 1)], [(0, 2), (1, 3)], [(2, 4)]]
    blocks = [[0, 1], [1], [2, 3], [5], [4], [4]]
    for numbers in (Iter.from_range(5), ParIter.from_range(5, actors[:1]).gather_async(num_async=2)):
        assert list(numbers.transform(blocks_of_two)) == blocks
        assert list(numbers.transform(blocks_of_two).batch(4).flatten()) == blocks
    assert list(ParIter.from_range(5, actors[:1]).transform(blocks_of_two).gather_async()) == blocks


@engines("inline", "process")
def test_a_transform_can_end_the_stream_and_add_to_it(actors: list[Actor]) -> None:
    def first_two(items: Iterator[Any]) -> Iterator[Any]:
        yield "first"
        yield from itertools.islice(items, 2)

    assert list(Iter.from_items(itertools.count).transform(first_two)) == ["first", 0, 1]
    assert list(ParIter.from_range(99, actors[:1]).gather_async().transform(first_two)) == ["first", 0, 1]
    assert list(create(actors[:1], "make").transform(first_two).gather_sync().for_each(len)) == [1, 1, 1]
    assert list(Iter.from_range(0).transform(first_two)) == ["first"]
    assert list(Iter.from_range(3).transform(lambda items: map(str, items))) == ["0", "1", "2"]


def test_a_transform_that_waits_does_not_delay_other_branches() -> None:
    gate = threading.Event()
    slow = Iter.from_range(4).for_each(lambda x: gate.wait(GENEROUS) and x, on="thread").transform(blocks_of_two)
    run = iter(union_async(slow, Iter.from_items("ab")))
    assert [next(run), next(run)] == ["a", "b"]
    gate.set()
    assert list(run) == [[0, 1], [1], [2, 3], [5]]


@pytest.mark.parametrize("on_thread", [False, True])
def test_a_transform_is_closed_with_its_run(on_thread: bool) -> None:
    closed: list[str] = []

    def closing(items: Iterator[int]) -> Iterator[int]:
        try:
            yield from items
        finally:
            closed.append("generator")

    numbers = Iter.from_items(itertools.count).queue(2) if on_thread else Iter.from_items(itertools.count)
    with numbers.transform(closing).start() as run:
        assert [next(run), next(run)] == [0, 1]
        assert closed == []
    assert closed == ["generator"]
    assert list(numbers.transform(closing).take(2)) == [0, 1]
    assert closed == ["generator"] * 2
    assert not [thread for thread in threading.enumerate() if thread.name == "raceway-transform"]


@pytest.mark.parametrize("on_thread", [False, True])
def test_errors_of_a_transform_and_of_its_stream_are_told_apart(on_thread: bool) -> None:
    def divide(items: Iterator[int]) -> Iterator[float]:
        for item in items:
            yield 1 / item

    def stop(items: Iterator[int]) -> Iterator[int]:
        yield next(iter(()))

    def numbers(*values: int) -> Iter[int]:
        return Iter.from_items(values).queue(1) if on_thread else Iter.from_items(values)

    with pytest.raises(OperatorError, match=r"transform\(divide\) failed in the driver[\s\S]*in divide"):
        list(numbers(1, 0).transform(divide))
    with pytest.raises(OperatorError, match=r"transform\(stop\) failed[\s\S]*StopIteration"):
        list(numbers(1).transform(stop))
    with pytest.raises(OperatorError, match=r"for_each\(<lambda>\) failed in the driver, item 1"):
        list(numbers(1, 0).for_each(lambda x: 1 / x).transform(lambda items: map(str, items)))


def forgive(items: Iterator[Any]) -> Iterator[Any]:
    """Hide an error of the stream."""
    try:
        yield from items
    except BaseException:
        yield "hidden"


@engines("inline", "process")
def test_a_transform_cannot_hide_an_error_of_its_stream(actors: list[Actor]) -> None:
    for flow in (
        Iter.from_items([1, 0]).for_each(lambda x: 1 / x).transform(forgive),
        ParIter.from_items([1, 0], actors[:1]).for_each(lambda x: 1 / x).transform(forgive).gather_async(),
    ):
        run = flow.start()
        assert next(run) == 1
        with pytest.raises(OperatorError, match=r"for_each\(<lambda>\) failed .*, item 1: 0") as raised:
            next(run)
        assert isinstance(raised.value.__cause__, ZeroDivisionError)

    def quit_debugger(x: int) -> None:
        raise BdbQuit

    with pytest.raises(BdbQuit):
        next(Iter.from_range(2).for_each(quit_debugger).transform(forgive).start())


def fail_at_the_end(items: Iterator[int]) -> Iterator[int]:
    try:
        yield from items
    finally:
        raise LookupError("in finally")


@pytest.mark.parametrize("on_thread", [False, True])
def test_a_transform_that_fails_when_it_is_closed(on_thread: bool) -> None:
    source = Iter.from_items(itertools.count).queue(2) if on_thread else Iter.from_items(itertools.count)
    failing = source.transform(fail_at_the_end)
    refusal = r"transform\(fail_at_the_end\) failed in the driver"
    run = failing.take(2).start()
    assert [next(run), next(run)] == [0, 1], "the last item comes before the error"
    with pytest.raises(OperatorError, match=refusal) as raised:
        next(run)
    assert isinstance(raised.value.__cause__, LookupError)
    run = failing.take(2).start()
    assert [next(run), next(run)] == [0, 1]
    with pytest.raises(OperatorError, match=refusal):
        run.close()
    run.close()  # which reports it once
    with pytest.raises(OperatorError, match=refusal), failing.transform(changes).start() as run:
        assert next(run) == (0, 0)


def test_a_run_whose_closing_fails_still_waits_and_reports_its_end() -> None:
    started, go, done = threading.Event(), threading.Event(), []

    def work(x: int) -> int:
        started.set()
        assert go.wait(GENEROUS)
        done.append(x)
        return x

    def release(items: Iterator[int]) -> Iterator[int]:
        try:
            yield from fail_at_the_end(items)
        finally:
            go.set()

    slow, failing = Iter.from_range(9).for_each(work, on="thread"), Iter.from_range(9).transform(release)
    run, events = union_async(slow, failing).start(wait=True), []
    run.subscribe(lambda event: events.append(event.kind))
    assert next(run) == 0
    assert started.wait(GENEROUS)
    with pytest.raises(OperatorError, match="in finally"):
        run.close()
    assert done, "the call on the thread was waited for"
    assert events[-1] == "stop"


@engines("inline", "process")
def test_what_a_transform_may_request(actors: list[Actor]) -> None:
    def label(items: Iterator[int], *, shard: Shard = injected, actor: Counter = injected) -> Iterator[Any]:
        return ((shard.number, actor.number, item) for item in items)

    assert list(ParIter.from_range(2, actors).transform(label).gather_sync()) == [[(0, 0, 0), (1, 1, 1)]]
    with pytest.raises(ConfigError, match="asks for 'envelope', but transform"):
        Iter.from_range(2).transform(lambda items, envelope=injected: items)


@engines("inline", "process")
def test_envelopes_of_a_transform(actors: list[Actor]) -> None:
    with ParIter.from_range(6, actors).gather_async().transform(blocks_of_two).start() as run:
        next(run)
        assert run.envelope is not None
        assert run.envelope.size == 2  # merged from the items that were read for it
        next(run)
        assert run.envelope.size == 2  # a second result of the same items


@engines("inline", "process")
@pytest.mark.parametrize("place", ["source", "gather", "shards"])
def test_state_of_a_transform(actors: list[Actor], place: str) -> None:
    def plan(function: Any) -> Iter[Any]:
        if place == "source":
            return Iter.from_range(9).transform(function)
        numbers = ParIter.from_range(9, actors)
        if place == "shards":
            return numbers.transform(function).gather_sync()
        return numbers.gather_sync().flatten().transform(function)

    expected = list(plan(Pairwise()))
    for num_before in (0, 1, 3):
        with plan(Pairwise()).start() as run:
            before = [next(run) for _ in range(num_before)]
            state = pickle.loads(pickle.dumps(run.state()))
            assert before + list(run) == before + list(plan(Pairwise()).restore(state)) == expected
    for function in (changes, partial(changes), itertools.pairwise):
        with plan(function).start() as run:
            assert run.state()  # before its first item, any transform can be saved
            next(run)
            with pytest.raises(ConfigError, match=r"transform\(\w+\).*no state that could be saved.*local variables"):
                run.state()
            assert len(list(run)) >= len(expected) - 2


# Flatten and repeat.


def test_flatten_on_shards(actors: list[Actor]) -> None:
    lists = ParIter.from_range(5, actors).for_each(lambda x: [x] * x)
    assert list(lists.flatten().gather_sync()) == [[2, 1], [2, 3], [4, 3], [4, 3], [4], [4]]
    assert list(ParIter.from_range(8, actors).batch(3).flatten().gather_sync()) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    flow = ParIter.from_range(4, actors).batch(2).flatten().zip_with_source().gather_async()
    assert sorted((source.shard, item) for source, item in flow) == [(0, 0), (0, 2), (1, 1), (1, 3)]


def test_repeat(actors: list[Actor]) -> None:
    assert list(Iter.from_items(lambda: iter("ab")).repeat(3)) == [*"ababab"]
    assert list(ParIter.from_range(3, actors).repeat(2).gather_sync()) == [[0, 1], [2, 1], [0], [2]]
    forever = ParIter.from_iterators([lambda: iter("xy"), [7]], actors).repeat()
    assert list(forever.for_each(str).gather_sync().take(3)) == [["x", "7"], ["y", "7"], ["x", "7"]]
    assert list(Iter.from_range(0).repeat()) == []  # there is nothing to repeat
    assert list(ParIter.from_items("a", actors).repeat(2).gather_sync()) == [["a"], ["a"]]
    assert "from_range(3, repeat)" in str(Iter.from_range(3).repeat())
    assert "from_range(4, shards=2, repeat=2)" in str(ParIter.from_range(4, actors).repeat(2))


@pytest.mark.parametrize("items", ["abc", lambda: iter("abc")], ids=["sequence", "function"])
def test_state_of_a_repeated_source(items: Any) -> None:
    flow = Iter.from_items(items).repeat(3)
    expected = [*"abc"] * 3
    for num_before in range(10):
        with flow.start() as run:
            assert [next(run) for _ in range(num_before)] == expected[:num_before]
            assert list(flow.restore(run.state())) == expected[num_before:]


def test_restoring_a_repeated_source_does_not_read_what_it_skips() -> None:
    flow = Iter.from_range(1000).repeat()
    state = iter(flow).state()
    state["stages"][0]["position"] = 10**15 + 7
    assert next(flow.restore(state)) == 7


@engines("inline", "process")
def test_what_cannot_be_repeated(actors: list[Actor]) -> None:
    for flow in (
        Iter.from_range(3).for_each(str),
        create(actors, "make"),
        Iter.from_range(3).repeat(2).batch(2),
        ParIter.from_range(4, actors).repartition(2),
    ):
        with pytest.raises(ConfigError, match="follows from_range, from_items or from_iterators"):
            flow.repeat()
    with pytest.raises(ConfigError, match="only once, so it cannot be repeated"):
        Iter.from_items(iter("ab")).repeat()
    with pytest.raises(ConfigError, match="times must be"):
        Iter.from_range(3).repeat(0)


# All items that are ready.


class Arrivals:
    """An operator that passes on an item each time its gate is released."""

    def __init__(self) -> None:
        self.gate = threading.Semaphore(0)

    def __call__(self, value: Any) -> Any:
        assert self.gate.acquire(timeout=GENEROUS)
        return value


def test_a_star_takes_all_items_that_are_ready() -> None:
    arrivals = Arrivals()
    late = Iter.from_items("abcdef").for_each(arrivals, on="thread", queue=6)
    flow = union(numbers=Iter.from_range(6), late=late, weights={"late": "*"})
    assert "late: *" in str(flow)
    run = iter(flow)
    assert [next(run), next(run), next(run)] == [0, 1, 2]  # nothing is ready: nobody waits for it
    for _ in range(3):
        arrivals.gate.release()
    offloaded = next(stage for stage in run.stages.values() if hasattr(stage, "in_flight"))
    done = lambda: sum(call[0].done() for call in offloaded.in_flight._outstanding)  # noqa: E731
    assert eventually(lambda: done() == 3)
    assert [next(run) for _ in range(5)] == ["a", "b", "c", 3, 4]
    for _ in range(3):
        arrivals.gate.release()
    assert sorted(map(str, run)) == [*"5def"]


def test_a_union_of_stars_waits_for_the_first_item() -> None:
    gate = threading.Event()
    slow = [Iter.from_range(3).for_each(lambda x: gate.wait(GENEROUS) and x, on="thread") for _ in range(2)]
    run = iter(union(*slow, weights=["*", "*"]))
    with pytest.raises(WaitTimeout):
        run.next(timeout=0.01)
    gate.set()
    assert sorted(run) == [0, 0, 1, 1, 2, 2]


def test_a_star_beside_fractions_limits_and_branches_that_end() -> None:
    ready = Iter.from_items("ab")
    assert list(union(Iter.from_range(4), ready, weights=[0.5, "*"])) == ["a", "b", 0, 1, 2, 3]
    assert list(union(Iter.from_range(3), ready, weights=[1, "*"])) == [0, "a", "b", 1, 2]
    limit = RateLimit(branch="ready", per="numbers", ratio=1)
    limited = union(numbers=Iter.from_range(3), ready=ready, weights={"ready": "*"}, limits=[limit])
    assert list(limited) == [0, "a", 1, "b", 2]


def test_state_of_a_union_with_a_star() -> None:
    def plan() -> Iter[Any]:
        return union(Iter.from_range(5), Iter.from_items("abc"), Iter.from_range(10, 15), weights=[1, "*", 2])

    expected = list(plan())
    for num_before in range(len(expected)):
        with plan().start() as run:
            before = [next(run) for _ in range(num_before)]
            assert before + list(plan().restore(run.state())) == expected


@pytest.mark.parametrize("weight", ["all", "", 0, -1])
def test_other_weights_are_refused(weight: Any) -> None:
    with pytest.raises(ConfigError, match="the weight of branch '1' must be a number above 0"):
        union(Iter.from_range(2), Iter.from_range(2), weights=[1, weight])


# The next item, with a timeout.


def test_next_with_a_timeout_loses_nothing() -> None:
    gate = threading.Semaphore(0)
    flow = Iter.from_range(3).for_each(lambda x: gate.acquire(timeout=GENEROUS) and x, on="thread").batch(2)
    with flow.start() as run:
        for timeout in (0, 0.01):
            with pytest.raises(TimeoutError, match=r"run continues: call next\(\) again"):
                run.next(timeout=timeout)
        gate.release()
        with pytest.raises(WaitTimeout):  # half of the batch is there
            run.next(timeout=0.01)
        for _ in range(2):
            gate.release()
        assert [run.next(timeout=GENEROUS), run.next()] == [[0, 1], [2]]
        with pytest.raises(StopIteration):
            run.next(timeout=0)


def test_next_with_a_timeout_on_actors() -> None:
    with make_engine("process") as engine:
        actor = engine.spawn(Counter)
        flow = create([actor], "make").gather_async(num_async=2)
        items: list[Any] = []
        with flow.start() as run:
            while len(items) < 20:
                try:
                    items.append(run.next(timeout=0))
                except WaitTimeout:
                    assert run.state()["plan"]  # the run is open, and usable
        assert items == [(0, number + 1) for number in range(20)]


def test_next_of_a_flow_and_wrong_timeouts() -> None:
    flow = Iter.from_range(3)
    assert [flow.next(timeout=0), next(flow), flow.next()] == [0, 1, 2]
    for timeout in (-1, "1"):
        with pytest.raises(ConfigError, match="timeout must be a number of seconds"):
            Iter.from_range(3).next(timeout)  # type: ignore[arg-type]
