"""Every run of a flow has its own state of the operators in the driver, although they are the program's objects."""

import pickle
import threading
from collections import Counter as Tally
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

from raceway.errors import FlowError
from raceway.flow import Iter, _snapshots, union
from raceway.state import Stateful
from tests.conftest import GENEROUS
from tests.flow.actors import Pairs, Sum
from tests.flow.test_state import Noise, OwnState


class Average(Stateful):
    """An operator that lists its state, and keeps a value that is not part of it."""

    state_attributes = ("values",)

    def __init__(self) -> None:
        self.values: list[int] = []
        self.num_calls = 0

    def __call__(self, value: int) -> float:
        self.num_calls += 1
        self.values.append(value)
        return sum(self.values) / len(self.values)


class Lazy:
    """An operator whose state is created by its first call."""

    def __call__(self, value: int) -> float:
        if not hasattr(self, "random"):
            self.random, self.seen = np.random.default_rng(5), set()
        self.seen.add(value)
        return value + float(self.random.random()) + len(self.seen)


class Generates:
    """An operator for `flat_map` that changes its state while its results are read."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, value: int) -> Any:
        for _ in range(2):
            self.total += value
            yield self.total


class Every:
    """Keeps one of every few items."""

    def __init__(self, every: int) -> None:
        self.every, self.count = every, 0

    def __call__(self, value: Any) -> bool:
        self.count += 1
        return self.count % self.every == 0


class Tallies:
    """An operator with a dict subclass."""

    def __init__(self) -> None:
        self.counts: Tally[int] = Tally()

    def __call__(self, value: int) -> int:
        self.counts[value % 2] += 1
        return self.counts[0]


@dataclass(frozen=True)
class Scale:
    """An operator whose attributes are read-only."""

    factor: float

    def __call__(self, value: int) -> float:
        return self.factor * value


@dataclass(slots=True)
class SlotSum:
    """An operator without a `__dict__`."""

    total: int = 0

    def __call__(self, value: int) -> int:
        self.total += value
        return self.total


class Item:
    """Not plain data."""

    def __init__(self, value: int) -> None:
        self.value = value


class Previous:
    """An operator with attributes that change between plain data and other objects, or are deleted."""

    def __init__(self) -> None:
        self.previous: Item | None = None
        self.first: Item | None = Item(-1)
        self.unread = [Item(-2)]

    def __call__(self, value: int) -> tuple[int | None, bool, bool]:
        result = self.previous and self.previous.value, self.first is None, hasattr(self, "unread")
        self.previous, self.first = Item(value), None
        if value == 2:
            del self.unread
        return result


class Empty(Sum):
    """An operator that is false."""

    def __len__(self) -> int:
        return 0


FLOWS: dict[str, Any] = {
    "read-only attributes": lambda numbers: numbers.for_each(Scale(2.0)),
    "slots": lambda numbers: numbers.for_each(SlotSum()),
    "not always plain data": lambda numbers: numbers.for_each(Previous()),
    "false": lambda numbers: (lambda s: numbers.for_each(s).for_each(s))(Empty()),
    "plain attributes": lambda numbers: numbers.for_each(Sum()),
    "own state": lambda numbers: numbers.for_each(OwnState()),
    "state attributes": lambda numbers: numbers.for_each(Average()),
    "random numbers": lambda numbers: numbers.for_each(Noise()),
    "dict subclass": lambda numbers: numbers.for_each(Tallies()),
    "created later": lambda numbers: numbers.for_each(Lazy()),
    "partial": lambda numbers: numbers.for_each(partial(Sum())),
    "combine": lambda numbers: numbers.take(5).combine(Pairs()),
    "filter": lambda numbers: numbers.filter(Every(3)),
    "flat_map": lambda numbers: numbers.flat_map(Generates()),
    "thread": lambda numbers: numbers.for_each(Sum(), on="thread"),
    "twice in a plan": lambda numbers: (lambda s: numbers.for_each(s).batch(2).for_each(sum).for_each(s))(Sum()),
}


@pytest.mark.parametrize("plan", FLOWS.values(), ids=FLOWS.keys())
def test_runs_of_a_flow_are_equal(plan: Any) -> None:
    expected = list(plan(Iter.from_range(8)))
    flow = plan(Iter.from_range(8))
    assert [list(flow), list(flow)] == [expected, expected]
    with flow.start() as partly_read:
        next(partly_read)
    assert list(flow) == expected
    assert list(zip(flow, flow, strict=True)) == list(zip(expected, expected, strict=True))


SAVED = {name: plan for name, plan in FLOWS.items() if name != "not always plain data"}


@pytest.mark.parametrize("plan", SAVED.values(), ids=SAVED.keys())
def test_a_run_continues_beside_one_restored_from_its_state(plan: Any) -> None:
    expected = list(plan(Iter.from_range(8)))
    flow = plan(Iter.from_range(8))
    with flow.start() as run:
        before = [next(run)]
        restored = flow.restore(pickle.loads(pickle.dumps(run.state())))
        assert list(restored) == expected[1:]
        assert before + list(run) == expected


def test_the_program_sees_the_state_of_the_last_run_and_can_change_it() -> None:
    operator = Sum()
    flow = Iter.from_range(4).for_each(operator)
    assert list(flow)[-1] == operator.total == 6
    assert list(flow)[-1] == operator.total == 6
    operator.total = 100  # between runs: the next runs start from it
    assert [list(flow)[-1], list(flow)[-1]] == [106, 106]
    run = iter(flow)
    assert next(run) == 100
    operator.total = 200  # during a run: for this run alone
    assert list(run)[-1] == 206
    assert list(flow)[-1] == 106


def test_containers_that_a_run_filled_are_not_emptied_by_the_next() -> None:
    operator = OwnState.__new__(type("Collect", (), {"__call__": lambda self, x: self.seen.append(x) or x}))
    operator.seen = []
    flow = Iter.from_range(3).for_each(operator)
    list(flow)
    first = operator.seen
    list(flow)
    assert first == operator.seen == [0, 1, 2]
    assert first is not operator.seen


def test_what_is_shared_by_runs() -> None:
    class Shared(Sum):
        shared_by_runs = True

    network = type("Network", (), {"steps": 0})()

    class Train:
        def __init__(self) -> None:
            self.network, self.count = network, 0

        def __call__(self, value: int) -> tuple[int, int]:
            self.network.steps += 1
            self.count += 1
            return self.network.steps, self.count

    flow = Iter.from_range(3).for_each(Train())
    assert [list(flow)[-1], list(flow)[-1]] == [(3, 3), (6, 3)]  # the network is not part of the operator's state
    shared, method = Iter.from_range(3).for_each(Shared()), Iter.from_range(3).for_each(Sum().__call__)
    assert [list(shared)[-1], list(shared)[-1]] == [3, 6]
    assert [list(method)[-1], list(method)[-1]] == [3, 6]


def test_operators_that_read_one_another_switch_together() -> None:
    learner = Sum()
    flow = Iter.from_range(1, 5).for_each(learner).for_each(lambda x: (x, learner.total)).for_each(Every(1))
    learner_of_another_flow = Iter.from_range(1, 5).for_each(learner).for_each(lambda x: (x, learner.total))
    assert list(flow) == [True] * 4
    first, second = iter(learner_of_another_flow), iter(learner_of_another_flow)
    assert [next(first), next(first), next(second), next(first)] == [(11, 11), (13, 13), (11, 11), (16, 16)]


def test_two_runs_in_two_threads_do_not_mix() -> None:
    flow = union(Iter.from_range(500).for_each(Sum()), Iter.from_range(500).for_each(Average()))
    expected, results = list(flow), {}
    threads = [threading.Thread(target=lambda n=n: results.update({n: list(flow)})) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
    assert results == {0: expected, 1: expected}


class CountItems:
    """A `transform` that counts its items."""

    count = 0

    def __call__(self, items: Iterator[int]) -> Iterator[int]:
        for _ in items:
            self.count += 1
            yield self.count


def test_a_run_calls_one_operator_while_another_thread_is_in_a_call_of_another() -> None:
    meet = threading.Barrier(2)

    def items() -> Iterator[int]:
        for value in range(4):
            if threads:
                meet.wait(GENEROUS)  # each thread is in a generator, which reads this
            yield value

    threads: list[threading.Thread] = []
    flow = union(*[Iter.from_items(items).for_each(Sum()).transform(CountItems()) for _ in range(2)])
    ahead, behind, results = iter(flow), iter(flow), []
    next(ahead)
    threads += [threading.Thread(target=lambda r=r: results.append(next(r)), daemon=True) for r in (ahead, behind)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
    threads.clear()
    assert results == [1, 1]
    assert [[*ahead], [*behind]] == [[2, 2, 3, 3, 4, 4], [1, 2, 2, 3, 3, 4, 4]]


def test_two_flows_with_the_same_operator_do_not_mix() -> None:
    operator = Sum()
    first, second = (Iter.from_range(4).for_each(operator) for _ in range(2))
    assert [list(first), list(second)] == [[0, 1, 3, 6], [6, 7, 9, 12]]
    assert list(zip(first, second, strict=True)) == [(0, 6), (1, 7), (3, 9), (6, 12)]
    operator.total = 100  # for both
    assert [list(first)[-1], list(second)[-1]] == [106, 106]


def test_an_operator_may_run_the_flow_that_it_is_in() -> None:
    class Nested(Sum):
        def __call__(self, value: int) -> Any:
            inner = list(flow) if value == 3 and self.total == 3 and not depth.append(value) and len(depth) == 1 else []
            return super().__call__(value), inner

    depth: list[int] = []
    flow = Iter.from_range(5).for_each(Nested())
    sums = [(0, []), (1, []), (3, []), (6, []), (10, [])]
    assert list(flow) == [*sums[:3], (6, sums), sums[4]]


def test_a_large_array_is_copied_only_for_runs_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rows:
        def __init__(self) -> None:
            self.rows, self.count = np.zeros(9), 0

        def __call__(self, value: int) -> tuple[int, float]:
            self.count += 1
            self.rows[value] += writes
            return self.count, float(self.rows.sum())

    monkeypatch.setattr(_snapshots, "_LARGE", 8)
    operator, writes = Rows(), 0
    rows, flow = operator.rows, Iter.from_range(3).for_each(operator)
    assert list(flow) == list(flow) == [(1, 0), (2, 0), (3, 0)]
    assert operator.rows is rows
    first, second, writes = iter(flow), iter(flow), 1
    assert [next(first), next(second), next(first)] == [(1, 1), (1, 1), (2, 2)]
    with pytest.raises(FlowError, match=r"cannot be run again: Rows has changed its arrays in place.*shared_by_runs"):
        iter(flow)
    assert [*first, *second] == [(3, 3), (2, 2), (3, 3)]  # the others continue


def test_a_state_that_cannot_be_copied_fails_for_the_second_run_only() -> None:
    class NotReady(OwnState):
        def state(self) -> Any:
            raise RuntimeError("no state yet")

    flow = Iter.from_range(3).for_each(NotReady())
    assert len(list(flow)) == 3
    with pytest.raises(FlowError, match=r"state of NotReady could not be copied .*no state yet.*shared_by_runs"):
        list(flow)


def test_functions_on_threads_do_not_exclude_each_other() -> None:
    both = threading.Barrier(2)
    flow = Iter.from_range(3).for_each(lambda x: both.wait(GENEROUS) * 0 + x, on="thread")
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(list(flow)), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GENEROUS)
    assert results == [[0, 1, 2]] * 2


def test_a_flow_with_operators_can_be_pickled() -> None:
    flow = Iter.from_range(4).for_each(Sum()).for_each(abs, on="thread")
    copied = pickle.loads(pickle.dumps(flow))
    assert list(flow) == list(copied) == list(copied) == [0, 1, 3, 6]
