"""Shards that move to idle actors: `create(..., moves=True)`."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from raceway.engine.base import Actor, Engine
from raceway.errors import ShardFailed
from raceway.flow import Iter, ParIter, Shard, StreamEnd, create, injected
from tests.conftest import GENEROUS
from tests.engine.conftest import engines
from tests.flow.actors import OneBehind, num_guests

LAST = 12


class Numbered:
    """Produces (shard number, item number), and is slow for the first shard."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.produced: list[tuple[int, int]] = []

    def make(self, *, shard: Shard = injected, number: int = injected) -> tuple[int, int]:
        if number == LAST:
            raise StreamEnd
        if shard.number == 0:
            time.sleep(self.seconds)
        self.produced.append((shard.number, number))
        return shard.number, number

    def get(self, name: str) -> Any:
        return getattr(self, name)


class Lettered:
    def letter(self, *, number: int = injected) -> str:
        return "abcdefgh"[number]


@pytest.fixture
def numbered(engine: Engine) -> list[Actor]:
    return spawn(engine, 2)


def spawn(engine: Engine, count: int, seconds: float = 0.0) -> list[Actor]:
    actors = [engine.spawn(Numbered, (seconds,), name=f"numbered-{index}") for index in range(count)]
    for actor in actors:
        actor.ready.result(GENEROUS)
    return actors


def moving(actors: list[Actor], num_shards: int, **settings: Any) -> ParIter[Any]:
    return create(actors, "make", num_shards=num_shards, moves=True, **settings)


def all_items(num_shards: int) -> list[tuple[int, int]]:
    return [(shard, number) for shard in range(num_shards) for number in range(LAST)]


def test_item_numbers_are_injected(numbered: list[Actor]) -> None:
    with iter(create(numbered, "make", num_shards=3).gather_sync()) as run:
        assert [next(run) for _ in range(2)] == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (1, 1), (2, 1)]]
        state = run.state()
    restored = create(numbered, "make", num_shards=3).gather_sync().restore(state)
    with restored:
        assert next(restored) == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize("moves", [False, True])
def test_moving_shards_does_not_change_the_items(numbered: list[Actor], moves: bool) -> None:
    with iter(create(numbered, "make", num_shards=5, moves=moves).for_each(lambda x: x).gather_sync()) as run:
        for number in range(3):
            assert next(run) == [(shard, number) for shard in range(5)]
        assert run.envelope is not None
        assert [source.shard for source in run.envelope.sources] == list(range(5))


@pytest.mark.parametrize("num_async", [1, 2, 4])
@engines("inline", "process")
def test_every_item_arrives_once_and_in_order(numbered: list[Actor], num_async: int) -> None:
    """A shard stays where its requests are, and moves with the position after the last item that has arrived."""
    items = list(moving(numbered, 5).gather_async(num_async))
    assert sorted(items) == all_items(5)
    for shard in range(5):
        assert [number for index, number in items if index == shard] == list(range(LAST))


@engines("inline", "process")
def test_shards_that_hold_items_stay(numbered: list[Actor]) -> None:
    items = list(moving(numbered, 5).flat_map(lambda item: [(*item, 0), (*item, 1)]).gather_async(2))
    assert sorted(items) == [(*item, half) for item in all_items(5) for half in range(2)]


@engines("process", "ray")
def test_shards_move_to_idle_actors(engine: Engine) -> None:
    actors = spawn(engine, 2, seconds=0.5)
    with iter(moving(actors, 8).gather_sync()) as run:
        next(run)
        slow, fast = sorted((actor.call("get", "produced").result(GENEROUS) for actor in actors), key=len)
        assert (0, 0) in slow
        assert len(fast) > 4  # its own, and some of the slow actor's
        assert num_guests(actors[0]) + num_guests(actors[1]) == 8  # a shard that moved was closed on its old actor


@engines("inline", "process")
def test_shards_move_only_to_actors_of_their_own_source(engine: Engine, numbered: list[Actor]) -> None:
    letters = create([engine.spawn(Lettered)], "letter", num_shards=3, moves=True).take(4)
    items = list(moving(numbered, 3).union(letters).gather_async(2))
    assert sorted(x for x in items if isinstance(x, tuple)) == all_items(3)
    assert sorted(x for x in items if isinstance(x, str)) == sorted("abcd" * 3)


@engines("process")
def test_movable_shards_survive_the_death_of_an_actor(numbered: list[Actor]) -> None:
    with moving(numbered, 6).on_failure("restart", errors=False).gather_async(2).start() as run:
        items = [next(run) for _ in range(7)]
        numbered[1].engine.kill(numbered[1])
        items += run
        assert sorted(items) == all_items(6)
        assert numbered[1].incarnation == 1
        assert run.counts["lost"] == 0


@engines("process")
def test_movable_shards_leave_an_idle_actor_that_died(numbered: list[Actor]) -> None:
    with iter(moving(numbered, 6).on_failure("drop").gather_sync()) as run:
        rounds = [next(run)]
        numbered[1].engine.kill(numbered[1])
        rounds += [next(run) for _ in range(2)]
        assert rounds == [[(shard, number) for shard in range(6)] for number in range(3)]
        assert not run.counts


@engines("process")
def test_only_shards_at_work_are_dropped_with_their_actor(engine: Engine) -> None:
    """The others move to the living actors, and get their turn beside the shards that are there already."""
    actors = spawn(engine, 3)

    def kill_second(item: tuple[int, int]) -> tuple[int, int]:
        if item == (1, 0) and actors[1].alive:
            engine.kill(actors[1])
        return item

    with moving(actors, 9).on_failure("drop", budget=9).gather_async().for_each(kill_second).start() as run:
        items = list(run)
    assert len(items) == len(set(items))
    complete = {shard for shard in range(9) if (shard, LAST - 1) in items}
    assert len(complete) >= 8
    assert set(items) >= {(shard, number) for shard in complete for number in range(LAST)}


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
@engines("process")
def test_dropping_every_shard_is_a_failure(numbered: list[Actor], gather: str) -> None:
    flow: Iter[Any] = getattr(moving(numbered, 4).on_failure("drop", budget=9), gather)()
    with flow.start() as run:
        next(run)
        for actor in numbered:
            actor.engine.kill(actor)
        with pytest.raises(ShardFailed, match=r"numbered-\d failed: ActorDied"):
            list(run)


@engines("process")
def test_shards_that_hold_items_are_dropped_with_their_actor(numbered: list[Actor]) -> None:
    flow = moving(numbered, 4).flat_map(lambda item: [item, item]).on_failure("drop", budget=9).gather_sync()
    with flow.start() as run:
        assert len(next(run)) == 4
        num_lost = num_guests(numbered[1])
        numbered[1].engine.kill(numbered[1])
        remaining = [{shard for shard, _ in items} for items in run]
        assert len(remaining) == 2 * LAST - 1
        assert all(len(shards) == 4 - num_lost for shards in remaining)
        assert run.counts == {"dropped": num_lost, "lost": 2 * num_lost}  # one requested item and one held by each


def one_behind(items: Iterator[Any]) -> Iterator[Any]:
    operator = OneBehind()
    for item in items:
        yield from operator(item)
    yield from operator.finish()


@pytest.mark.parametrize("kind", ["combine", "transform"])
@engines("process")
def test_shards_whose_functions_hold_items_stay(engine: Engine, kind: str) -> None:
    """A fresh function on another actor would not have what the old one read."""
    shards = moving(spawn(engine, 2, seconds=0.02), 5)
    shards = shards.combine(OneBehind()) if kind == "combine" else shards.transform(one_behind)
    assert sorted(shards.gather_sync().flatten()) == all_items(5)
