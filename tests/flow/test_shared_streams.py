"""Several plans share one sharded stream: each has the interface of a ParIter, and all see every item once."""

import os
import signal
from typing import Any

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor
from raceway.errors import ConfigError, OperatorError
from raceway.flow import Envelope, Iter, ParIter, Shard, SharedStream, create, injected, union, union_async


class Numbers:
    """Returns mappings of two numbers, by shard and item."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def sample(self, *, shard: Shard = injected, number: int = injected) -> dict[str, int]:
        return {"low": 10 * shard.number + number, "high": 100 + 10 * shard.number + number}

    def part(self, name: str) -> str:
        return f"{name} of {self.offset}"

    def pid(self) -> int:
        return os.getpid()


class RunningSum:
    """Adds up what it has seen."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, value: int) -> int:
        self.total += value
        return self.total


def source(num: int = 2, name: str = "inline") -> tuple[Any, list[Actor]]:
    engine = make_engine(name)
    return engine, [engine.spawn(Numbers, (number,), name=f"numbers-{number}") for number in range(num)]


def shared(actors: list[Actor], num_shards: int = 2, **options: Any) -> SharedStream:
    return SharedStream(create(actors, "sample", num_shards=num_shards), ("low", "high"), **options)


def test_operators_run_on_the_shards_with_their_own_state_actor_and_shard() -> None:
    def label(value: int, *, actor: Any = injected, shard: Shard = injected, envelope: Envelope = injected) -> str:
        return f"{actor} {shard.number} {envelope.sequence} {value}"

    engine, actors = source()
    with engine:
        stream = shared(actors, actor_of=Numbers.part)
        low = stream.part("low").for_each(RunningSum()).gather_sync()
        high = stream.part("high").for_each(label).gather_sync()
        stream.connect()
        items = list(union(low=low, high=high).take(4))
    assert items == [
        [0, 10],
        ["high of 0 0 0 100", "high of 1 1 0 110"],
        [1, 21],
        ["high of 0 0 1 101", "high of 1 1 1 111"],
    ]


def test_a_part_may_filter_batch_combine_and_flatten_on_its_shards() -> None:
    engine, actors = source()
    with engine:
        stream = shared(actors)
        low = stream.part("low").filter(lambda x: x % 3 == 0).gather_sync()  # shards have different numbers of these
        high = stream.part("high").batch(2).for_each(sum).gather_async()
        stream.connect()
        low_run, items = union(low=low, high=high, emit=["low"]), []
        items = list(low_run.take(3))
    assert items == [[0, 12], [3, 15], [6, 18]]
    engine, actors = source()
    with engine:
        stream = shared(actors)
        low, high = stream.part("low").gather_sync(), stream.part("high").batch(2).for_each(sum).gather_async()
        stream.connect()
        assert list(union(low=low, high=high, emit=["high"]).take(3)) == [201, 221, 205]


def test_items_keep_their_sources_and_shards_can_be_selected() -> None:
    engine, actors = source()
    with engine:
        stream = shared(actors)
        low = stream.part("low").select_shards(1).gather_async().zip_with_source()
        high = stream.part("high").select_shards(1, 0).gather_sync()
        stream.connect()
        (first, value), rounds = list(union(low=low, high=high).take(2))
        assert (first.shard, first.actor, value) == (1, actors[1], 10)
        assert rounds == [110, 100]


def test_a_part_can_be_repartitioned() -> None:
    engine, actors = source()
    with engine:
        stream = shared(actors)
        low = stream.part("low").repartition(3).gather_sync()
        high = stream.part("high").gather_sync()
        stream.connect()
        assert list(union_async(low=low, high=high, emit=["low"]).take(2)) == [[0, 10, 1], [11, 2, 12]]


def plan(actors: list[Actor]) -> Iter[Any]:
    stream = shared(actors, num_shards=3)
    low = stream.part("low").for_each(RunningSum()).gather_sync().batch(3)
    high = stream.part("high").for_each(RunningSum()).gather_sync()
    stream.connect()
    return union_async(low=low, high=high)


@pytest.mark.parametrize("num_read", [1, 3, 4])
def test_a_run_continues_from_its_state(num_read: int) -> None:
    engine, actors = source()
    with engine:
        whole = list(plan(actors).take(9))
    engine, actors = source()
    with engine, plan(actors).start() as run:
        assert [next(run) for _ in range(num_read)] == whole[:num_read]
        state = run.state()
    engine, actors = source(1)
    with engine, plan(actors).start(state=state) as run:
        assert [next(run) for _ in range(9 - num_read)] == whole[num_read:]


def test_the_order_of_branches_does_not_depend_on_the_engine() -> None:
    engine, actors = source()
    with engine:
        expected = list(plan(actors).take(40))
    engine, actors = source(3, "process")
    with engine:
        assert list(plan(actors).take(40)) == expected


def test_the_restart_hooks_of_all_plans_are_called() -> None:
    called: list[str] = []
    hooks: list[Any] = [lambda actor: called.append(f"source {actor.name}")]
    engine, actors = source(1, "process")
    with engine:
        restarting = create(actors, "sample").on_failure(
            "restart", on_restart=lambda actor: [hook(actor) for hook in hooks]
        )
        stream = SharedStream(restarting, ("low", "high"), on_restart=hooks)
        low = stream.part("low").on_failure("restart", on_restart=lambda actor: called.append("low")).gather_sync()
        high = stream.part("high").gather_sync()
        stream.connect()
        run = iter(union(low=low, high=high))
        assert [next(run), next(run)] == [[0], [100]]
        os.kill(actors[0].call("pid").result(30), signal.SIGKILL)
        assert next(run)[0] >= 1
        run.close()
    assert called == ["source numbers-0", "low"]


def test_errors_name_the_operator_of_the_part() -> None:
    engine, actors = source()
    with engine:
        stream = shared(actors)
        low = stream.part("low").for_each(lambda x: 1 // x).gather_sync()
        high = stream.part("high").gather_sync()
        stream.connect()
        with pytest.raises(OperatorError, match=r"for_each\(<lambda>\) failed on shard 0, item 0: 0"):
            next(iter(union(low=low, high=high)))


def test_mistakes_are_named() -> None:
    engine, actors = source()
    with engine:
        stream = shared(actors)
        with pytest.raises(ConfigError, match=r"unknown part 'hihg'\. Did you mean 'high'"):
            stream.part("hihg")
        stream.part("low").gather_sync()
        with pytest.raises(ConfigError, match="part 'low' is gathered twice"):
            stream.part("low").gather_async()
        with pytest.raises(ConfigError, match="the plan of part 'high' does not gather"):
            stream.connect()
        for refused in (
            lambda part: part.take(3),
            lambda part: part.repeat(),
            lambda part: part.union(ParIter.from_range(3, actors)),
            lambda part: part.select_shards(7),
            lambda part: part.on_failure("never"),
        ):
            with pytest.raises(ConfigError):
                refused(stream.part("high"))
