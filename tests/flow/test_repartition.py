"""Shards that are fed with the items of other shards."""

import pickle
from collections import Counter as Tally
from collections.abc import Iterator
from typing import Any

import pytest

from raceway.engine.base import Actor, Engine
from raceway.errors import ConfigError, OperatorError
from raceway.flow import Envelope, Iter, ParIter, Shard, create, injected, send_msg, union, union_async
from tests.conftest import GENEROUS
from tests.engine.conftest import engines
from tests.flow.actors import Counter, Pairs, Sum, num_guests
from tests.flow.module_fixtures import module_actors, module_engine, skip_leak_check  # noqa: F401


def test_items_are_dealt_out_in_turn(actors: list[Actor]) -> None:
    numbers = ParIter.from_range(7, actors)
    assert list(numbers.repartition(3).gather_sync()) == [[0, 1, 2], [3, 4, 5], [6]]
    assert list(numbers.repartition(1, actors[1:]).gather_sync()) == [[n] for n in range(7)]
    assert sorted(numbers.repartition(4).gather_async(num_async=2)) == list(range(7))
    assert list(numbers.repartition(2).select_shards(1).gather_async()) == [1, 3, 5]
    assert list(numbers.take(1).repartition(5).gather_sync()) == [[0, 1]]
    assert list(ParIter.from_range(0, actors).repartition(2).gather_sync()) == []
    assert [num_guests(actor) for actor in actors] == [0, 0]


@engines("inline", "process")
def test_operators_on_the_new_shards(actors: list[Actor]) -> None:
    def place(item: int, *, shard: Shard = injected, actor: Counter = injected) -> tuple[int, int, int]:
        return shard.number, actor.number, item

    flow = ParIter.from_range(3, actors).repartition(3, actors[::-1]).for_each(place).gather_sync()
    assert list(flow) == list(flow) == [[(0, 1, 0), (1, 0, 1), (2, 1, 2)]]
    numbers = ParIter.from_range(8, actors, num_shards=4).repartition(2)
    assert list(numbers.for_each(Sum()).gather_sync()) == [[0, 1], [2, 4], [6, 9], [12, 16]]
    assert list(numbers.batch(3).gather_sync()) == [[[0, 2, 4], [1, 3, 5]], [[6], [7]]]
    assert list(numbers.flat_map(lambda x: [x] * (x % 3)).gather_sync()) == [[2, 1], [2, 5], [4, 5], [7]]
    assert list(numbers.filter(lambda x: x in (0, 6, 7)).gather_sync()) == [[0, 7], [6]]
    assert list(numbers.combine(Pairs()).take(1).gather_sync()) == [[(0, 2), (1, 3)]]
    assert list(numbers.transform(lambda items: (-x for x in items)).gather_sync().take(2)) == [[0, -1], [-2, -3]]
    assert list(numbers.batch(2).repartition(3).flatten().gather_sync()) == [[0, 1, 4], [2, 3, 6], [5], [7]]


def test_the_same_on_any_number_of_actors(actors: list[Actor]) -> None:
    def plan(sources: list[Actor], targets: list[Actor]) -> Iter[Any]:
        numbers = ParIter.from_range(40, sources, num_shards=5).filter(lambda x: x % 7)
        return numbers.repartition(3, targets).for_each(Sum()).filter(lambda x: x % 3).gather_sync()

    expected = list(plan(actors, actors))
    assert list(plan(actors[:1], actors)) == list(plan(actors, actors[1:])) == expected


@engines("inline", "process")
def test_unions_with_fed_shards(actors: list[Actor]) -> None:
    numbers = ParIter.from_range(4, actors)
    assert list(numbers.repartition(2).union(ParIter.from_items("ab", actors)).gather_sync()) == [
        [0, 1, "a", "b"],
        [2, 3],
    ]
    both = union_async(numbers.repartition(3).gather_async(), numbers.gather_async())
    assert Tally(both) == Tally([*range(4)] * 2)
    fed = numbers.repartition(2)
    for twice in (union(fed.gather_sync(), fed.gather_sync()), fed.union(fed).gather_sync()):
        with pytest.raises(ConfigError, match=r"repartition\(shards=2\).*is read twice"):
            list(twice)


@engines("inline", "process")
def test_envelopes_and_plan(actors: list[Actor]) -> None:
    def look(item: Any, *, envelope: Envelope = injected) -> Envelope:
        return envelope

    for actor in actors:
        send_msg(actor, "set_weights", 0, version=4).result(GENEROUS)
    flow = create(actors, "make").batch(2).repartition(3).for_each(look).gather_sync()
    assert "repartition(shards=3)" in str(flow)
    assert "3 shards on 2 actors" in str(flow)
    with flow.start() as run:
        envelopes = next(run)
        assert run.envelope is not None
        assert [source.shard for source in run.envelope.sources] == [0, 1, 2]
    assert [(envelope.version, envelope.size, envelope.sequence) for envelope in envelopes] == [(4, 2, 0)] * 3


@engines("inline", "process")
def test_errors_name_the_new_shard(actors: list[Actor]) -> None:
    flow = ParIter.from_range(4, actors).repartition(2).for_each(lambda x: 1 // (3 - x)).gather_sync()
    with pytest.raises(OperatorError, match=r"for_each\(<lambda>\) failed on shard 1, item 1: 3"):
        list(flow)
    with pytest.raises(ConfigError, match="num_shards must be"):
        ParIter.from_range(4, actors).repartition(0)
    with pytest.raises(ConfigError, match="needs a list of actors"):
        ParIter.from_range(4, actors).repartition(2, [])


PLANS: dict[str, Any] = {
    "items": lambda fed: fed.gather_sync(),
    "sum": lambda fed: fed.for_each(Sum()).gather_sync(),
    "batch": lambda fed: fed.batch(3).gather_sync().flatten(),
    "leftovers": lambda fed: fed.flat_map(lambda x: [x] * 3).gather_sync().flatten(),
    "uneven": lambda fed: fed.filter(lambda x: x % 5).gather_sync(),
}


@engines("inline", "process")
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_state(actors: list[Actor], plan: Any) -> None:
    def flow() -> Iter[Any]:
        return plan(ParIter.from_range(30, actors, num_shards=4).repartition(3))  # type: ignore[no-any-return]

    expected = list(flow())
    for num_before in (0, 1, 4):
        with flow().start() as run:
            before = [next(run) for _ in range(num_before)]
            state = pickle.loads(pickle.dumps(run.state()))
            assert before + list(run) == expected
        assert before + list(flow().restore(state)) == expected


@engines("inline", "process")
def test_state_of_an_asynchronous_flow(actors: list[Actor]) -> None:
    flow = ParIter.from_range(50, actors).repartition(3).flat_map(lambda x: [x, x]).gather_async(num_async=2)
    with flow.start() as run:
        before = [next(run) for _ in range(13)]
        state = run.state()
    assert Tally([*before, *flow.restore(state)]) == Tally([*range(50)] * 2)


@pytest.fixture
def own(engine: Engine) -> Iterator[list[Actor]]:
    """Two actors that a test may kill."""
    actors = [engine.spawn(Counter, (number,)) for number in range(2)]
    yield actors
    for actor in actors:
        engine.kill(actor)


def test_a_fed_shard_that_is_restarted_loses_nothing(engine: Engine, actors: list[Actor], own: list[Actor]) -> None:
    fed = ParIter.from_range(30, actors).repartition(3, own).for_each(lambda x: -x)
    for gather in (fed.on_failure("restart").gather_sync().flatten(), fed.on_failure("restart").gather_async(2)):
        items = []
        with gather.start() as run:
            for number, item in enumerate(run):
                items.append(item)
                if number in (4, 11):
                    engine.kill(own[number % 2])
        assert Tally(items) == Tally(range(-29, 1))
        assert run.counts["restarted"] > 0
        assert run.counts["lost"] == 0


@engines("inline", "process")
def test_a_fed_shard_that_dies_after_a_restore(engine: Engine, actors: list[Actor], own: list[Actor]) -> None:
    flow = ParIter.from_range(20, actors).repartition(2, own).flat_map(lambda x: [x, x]).on_failure("restart")
    with flow.gather_sync().start() as run:
        before = [next(run) for _ in range(3)]
        state = run.state()
    restored = flow.gather_sync().restore(state)
    engine.kill(own[0])
    items = [item for items in (*before, *restored) for item in items]
    assert items == [x for k in range(10) for x in (2 * k, 2 * k + 1) * 2]


@engines("inline", "process")
def test_the_items_of_a_dropped_shard_go_to_the_others(engine: Engine, actors: list[Actor], own: list[Actor]) -> None:
    flow = ParIter.from_range(20, actors).repartition(2, own).on_failure("drop").gather_sync()
    with flow.start() as run:
        before = [next(run), next(run)]
        engine.kill(own[0])
        rest = list(run)
    assert before == [[0, 1], [2, 3]]
    assert sorted(rest) == [[number] for number in range(4, 20)]
    assert run.counts == {"dropped": 1, "lost": 0}
