"""A flow restored from a saved state continues where it was."""

import pickle
from typing import Any

import numpy as np
import pytest

from raceway.engine.base import Actor, Engine
from raceway.errors import ConfigError, FlowError
from raceway.flow import Iter, ParIter, RateLimit, create, injected, union, union_async
from tests.flow.actors import Countdown, Counter, Pairs, Sum
from tests.flow.module_fixtures import module_actors, module_engine, skip_leak_check  # noqa: F401


class OwnState:
    """An operator that defines its own state."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, value: int) -> int:
        self.seen.append(value)
        return sum(self.seen)

    def state(self) -> Any:
        return {"seen": np.array(self.seen)}

    def restore(self, state: Any) -> None:
        self.seen = [int(value) for value in state["seen"]]


class Noise:
    """An operator with a random generator."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)

    def __call__(self, value: int) -> float:
        return value + float(self.random.random())


def numbers(actors: list[Actor]) -> Iter[int]:
    return ParIter.from_range(60, actors, num_shards=3).gather_sync().flatten()


PLANS: dict[str, Any] = {
    "rounds": lambda a: ParIter.from_range(40, a).gather_sync(),
    "for_each": lambda a: numbers(a).for_each(Sum()),
    "own state": lambda a: numbers(a).for_each(OwnState()),
    "random numbers": lambda a: numbers(a).for_each(Noise()),
    "partial batch": lambda a: numbers(a).batch(7).for_each(sum),
    "batch before flatten": lambda a: numbers(a).batch(7).flatten(),
    "combine": lambda a: numbers(a).combine(Pairs()),
    "flat_map": lambda a: numbers(a).flat_map(lambda x: [x] * 5),
    "filter": lambda a: numbers(a).filter(lambda x: x % 3),
    "take": lambda a: numbers(a).take(25),
    "shuffle": lambda a: numbers(a).shuffle(9, seed=4),
    "queue": lambda a: numbers(a).queue(4),
    "union": lambda a: union(numbers(a), numbers(a).for_each(lambda x: -x), weights=[2, 0.75]),
    "rate limit": lambda a: union(
        up=numbers(a), down=numbers(a).for_each(lambda x: -x), limits=[RateLimit(branch="down", per="up", ratio=0.3)]
    ),
    "split": lambda a: (lambda p: union(p[0].batch(3), p[1].for_each(Sum())))(numbers(a).split()),
    "thread": lambda a: numbers(a).for_each(Sum(), on="thread", queue=3),
    "actor": lambda a: numbers(a).for_each(Sum(), on=a[0], queue=3),
    "on shards: batch": lambda a: ParIter.from_range(60, a).batch(4).gather_sync(),
    "on shards: shuffle": lambda a: ParIter.from_range(60, a).shuffle(5, seed=2).gather_sync(),
    "on shards: sum": lambda a: ParIter.from_range(60, a).for_each(Sum()).gather_sync(),
    "on shards: random": lambda a: ParIter.from_range(60, a).for_each(Noise()).gather_sync(),
    "on shards: combine": lambda a: ParIter.from_range(60, a).combine(Pairs()).gather_sync(),
    "on shards: flat_map": lambda a: ParIter.from_range(30, a).flat_map(lambda x: [x] * 3).gather_sync(),
    "on shards: take": lambda a: ParIter.from_range(60, a).take(9).gather_sync(),
    "on shards: generator": lambda a: ParIter.from_iterators(
        [lambda: (x * x for x in range(20)), range(9)], a
    ).gather_sync(),
    "source in the driver": lambda a: Iter.from_items(lambda: (x for x in range(30))).batch(4),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_restored_flow_continues(actors: list[Actor], plan: Any) -> None:
    expected = list(plan(actors))
    for num_before in (0, 1, 5, 8):
        with plan(actors).start() as run:
            before = [next(run) for _ in range(num_before)]
            state = pickle.loads(pickle.dumps(run.state()))
            again = run.state()  # reading the state does not change the items that follow
            rest = list(run)
        assert before + rest == expected
        assert list(plan(actors).restore(state)) == rest
        assert list(plan(actors).restore(again)) == rest


def test_an_asynchronous_flow_loses_nothing(actors: list[Actor]) -> None:
    flow = ParIter.from_range(50, actors).gather_async(num_async=4).batch(3)
    with flow.start() as run:
        before = [next(run) for _ in range(5)]
        state = run.state()
    after = list(flow.restore(state))
    assert sorted(x for batch in before + after for x in batch) == list(range(50))


def test_items_in_flight_can_be_dropped(actors: list[Actor]) -> None:
    flow = ParIter.from_range(50, actors).gather_async(num_async=4)
    with flow.start() as run:
        before = [next(run) for _ in range(5)]
        kept, dropped = run.state(), run.state(in_flight="drop")
        rest = list(run)
    assert sorted(before + rest) == list(range(50))
    assert sorted(before + list(flow.restore(kept))) == list(range(50))
    after = list(flow.restore(dropped))
    assert set(before) | set(after) < set(range(50))
    assert len(before) + len(after) == len(set(before + after))
    with pytest.raises(ConfigError, match=r"unknown policy for items in flight 'dorp'. Did you mean 'drop'"):
        run.state(in_flight="dorp")


def test_branches_at_different_positions(actors: list[Actor]) -> None:
    left, right = ParIter.from_range(40, actors).gather_async().split("left", "right")
    flow = union_async(left.batch(4), right.batch(6).queue(2).for_each(tuple, on="thread"))
    with flow.start() as run:
        before = [next(run) for _ in range(4)]
        state = run.state()
    everything = before + list(flow.restore(state))
    assert sorted(x for part in everything if isinstance(part, list) for x in part) == list(range(40))
    assert sorted(x for part in everything if isinstance(part, tuple) for x in part) == list(range(40))


def test_the_state_includes_that_of_the_actors(engine: Engine) -> None:
    flow = create([engine.spawn(Countdown, (6,))]).gather_sync().flatten()
    with flow.start() as run:
        assert [next(run), next(run)] == [5, 4]
        state = run.state()
    fresh = create([engine.spawn(Countdown, (6,))]).gather_sync().flatten()
    assert list(fresh.restore(state)) == [3, 2, 1, 0]


def test_a_state_fits_any_number_of_actors(engine: Engine) -> None:
    def plan(count: int) -> Iter[Any]:
        actors = [engine.spawn(Counter, (number,), name=f"c{number}") for number in range(count)]
        return ParIter.from_range(40, actors, num_shards=4).for_each(Sum()).shuffle(3, seed=1).gather_sync().batch(2)

    with plan(1).start() as run:
        next(run)
        state, rest = run.state(), list(run)
    assert list(plan(3).restore(state)) == rest


def test_restored_envelopes_have_actor_handles(actors: list[Actor]) -> None:
    def senders(value: Any, *, envelope: Any = injected) -> list[Any]:
        return [source.actor for source in envelope.sources]

    flow = create(actors, "make").gather_sync().flatten().queue(3).batch(2).for_each(senders)
    with flow.start() as run:
        next(run)
        state = run.state()
    assert next(flow.restore(state)) == actors


def test_next_continues_from_a_restore(actors: list[Actor]) -> None:
    flow = ParIter.from_range(12, actors).gather_sync()
    run = iter(flow)
    assert [next(run), next(run)] == [[0, 1], [2, 3]]
    state = run.state()
    flow.restore(state)
    assert next(flow) == [4, 5]
    assert next(iter(flow.restore(state))) == [4, 5]
    assert next(iter(flow)) == [0, 1]


def test_a_shared_state_is_not_copied() -> None:
    """So that a replay buffer of gigabytes is not copied. It is valid until the next item is read."""
    with Iter.from_items([np.zeros(3), np.ones(3), np.ones(3)]).batch(2).start() as run:
        next(run)
        batching: Any = run._root
        batching.held.append((np.arange(3), ()))
        copied, shared = run.state(), run.state(shared=True)
        index = run.node_indices[run.nodes[-1]]
        assert shared["stages"][index]["held"][0][0] is batching.held[0][0]
        assert copied["stages"][index]["held"][0][0] is not batching.held[0][0]
        np.testing.assert_equal(copied, shared)


def test_a_state_of_another_flow_is_rejected(actors: list[Actor]) -> None:
    flow = ParIter.from_range(12, actors).gather_sync()
    run = iter(flow)
    next(run)
    with pytest.raises(ConfigError, match=r"belongs to another flow: .*but this one is .*batch\(2\)"):
        flow.batch(2).restore(run.state())
    other = ParIter.from_range(12, actors, num_shards=3).select_shards(0).gather_sync()
    state = run.state()
    state["plan"] = ["from_range(12, shards=3)", "select_shards(0)", "gather_sync"]
    state["stages"] = {2: state["stages"][1]}
    with pytest.raises(FlowError, match="state has 2 shards, but the flow has 1"):
        other.restore(state)
