"""Failure policies: shards that fail are restarted or dropped, or the flow raises."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.errors import ActorDied, ConfigError, DeadlineExceeded, OperatorError, ShardFailed
from raceway.flow import Event, Iter, ParIter, Run, create, send_msg
from tests.conftest import GENEROUS
from tests.engine.conftest import engines
from tests.flow.actors import Counter, Fragile, Sum, fail_on

REMOTE = ("process", "ray")


@pytest.fixture
def fragile(engine: Engine) -> list[Actor]:
    return [engine.spawn(Fragile, (number,), name=f"fragile-{number}") for number in range(2)]


def start_and_record(flow: Iter[Any]) -> tuple[Run[Any], list[Event]]:
    """Start a run, and return it with a list that its events are added to."""
    run, events = flow.start(), []
    run.subscribe(events.append)
    return run, events


def events_of_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
@pytest.mark.parametrize("how", ["kill", "raise"])
@engines(*REMOTE)
def test_a_restarted_shard_continues_after_the_last_item(
    fragile: list[Actor], tmp_path: Path, gather: str, how: str
) -> None:
    dies = partial(fail_on, bad=10, marker=str(tmp_path / "died"), how=how)
    shards = ParIter.from_range(24, fragile).for_each(dies).for_each(lambda x: -x).on_failure("restart")
    flow = shards.gather_sync().flatten() if gather == "gather_sync" else shards.gather_async()
    run, events = start_and_record(flow)
    assert sorted(run) == sorted(-x for x in range(24))  # nothing is lost or repeated, and the operators are recreated
    assert run.counts == {"restarted": 1, "lost": 0}
    (event,) = events_of_kind(events, "restarted")
    assert (event.data["shard"], event.data["actor"], event.data["lost"]) == (0, "fragile-0", 0)
    assert (
        ("SIGKILL" in event.data["error"] or "died" in event.data["error"])
        if how == "kill"
        else "bad item 10" in event.data["error"]
    )


@engines("inline")
def test_restart_on_the_inline_engine(fragile: list[Actor], tmp_path: Path) -> None:
    dies = partial(fail_on, bad=4, marker=str(tmp_path / "died"), how="raise")
    run, _ = start_and_record(ParIter.from_range(12, fragile).for_each(dies).on_failure("restart").gather_async())
    assert sorted(run) == list(range(12))
    assert run.counts["restarted"] == 1


@engines(*REMOTE)
def test_with_several_outstanding_requests_nothing_is_lost_or_repeated(fragile: list[Actor], tmp_path: Path) -> None:
    dies = partial(fail_on, bad=30, marker=str(tmp_path / "died"))
    run, _ = start_and_record(
        ParIter.from_range(80, fragile).for_each(dies).on_failure("restart").gather_async(num_async=4)
    )
    assert sorted(run) == list(range(80))
    assert run.counts["restarted"] == 1


@engines(*REMOTE)
def test_items_held_by_operators_are_counted_as_lost(fragile: list[Actor], tmp_path: Path) -> None:
    dies = partial(fail_on, bad=8, marker=str(tmp_path / "died"))
    flow = ParIter.from_range(40, fragile, num_shards=1).flat_map(lambda x: [x, x]).batch(3).for_each(lambda x: x)
    run, _ = start_and_record(
        flow.for_each(lambda batch: [dies(x) for x in batch]).on_failure("restart").gather_async()
    )
    received = [x for batch in run for x in batch]
    assert set(received) >= set(range(40)) - {7, 8, 9}
    assert run.counts["lost"] >= 80 - len(received) > 0


@engines(*REMOTE)
def test_on_restart_messages_are_handled_before_the_next_item(fragile: list[Actor]) -> None:
    version = 0

    def send_weights(actor: Actor) -> Any:
        return send_msg(actor, "set_weights", version, version=version)

    flow = create(fragile, "make").on_failure("restart", on_restart=send_weights).gather_sync()
    with flow.start() as run:
        assert next(run) == [(0, 1, 0), (1, 1, 0)]
        version = 7
        for actor in fragile:
            send_weights(actor).result(GENEROUS)
        os.kill(fragile[0].pid or 0, signal.SIGKILL) if fragile[0].pid else fragile[0].engine.kill(fragile[0])
        rounds = [next(run) for _ in range(4)]
        assert all(weights == 7 for items in rounds for _, _, weights in items)
        assert run.counts["restarted"] == 1
        assert run.envelope is not None
        assert run.envelope.version == 7


@engines("process")
def test_a_failed_on_restart_message_is_a_failure(fragile: list[Actor]) -> None:
    flow = create(fragile, "make").on_failure(
        "restart", on_restart=lambda actor: actor.call("bad_weights", 3), budget=2
    )
    with flow.gather_sync().start() as run:
        next(run)
        fragile[0].engine.kill(fragile[0])
        with pytest.raises(ShardFailed, match="no weights 3"):
            next(run)


@engines(*REMOTE)
def test_a_shard_that_hangs_is_killed_at_its_deadline(fragile: list[Actor], tmp_path: Path) -> None:
    hangs = partial(fail_on, bad=6, marker=str(tmp_path / "hung"), how="hang")
    flow = ParIter.from_range(20, fragile).for_each(hangs).on_failure("restart", deadline=1.0).gather_async()
    run, events = start_and_record(flow)
    assert sorted(run) == list(range(20))
    (event,) = events_of_kind(events, "restarted")
    assert "ran for more than 1 s" in event.data["error"]


@engines("process")
def test_other_shards_continue_while_one_hangs(fragile: list[Actor], tmp_path: Path) -> None:
    hangs = partial(fail_on, bad=0, marker=str(tmp_path / "hung"), how="hang")
    flow = ParIter.from_range(2000, fragile).for_each(hangs).on_failure("restart", deadline=0.5).gather_async()
    items = list(flow)
    assert sorted(items) == list(range(2000))
    assert items.index(0) > 500


@pytest.mark.parametrize("how", ["kill", "raise"])
@engines(*REMOTE)
def test_other_shards_continue_after_a_drop(fragile: list[Actor], tmp_path: Path, how: str) -> None:
    dies = partial(fail_on, bad=4, marker=str(tmp_path / "died"), how=how)
    run, events = start_and_record(ParIter.from_range(12, fragile).for_each(dies).on_failure("drop").gather_sync())
    assert [list(items) for items in run] == [[0, 1], [2, 3], [5], [7], [9], [11]]
    assert run.counts == {"dropped": 1, "lost": 1}
    assert [event.data["shard"] for event in events_of_kind(events, "dropped")] == [0]


def test_the_last_shard_is_not_dropped(fragile: list[Actor]) -> None:
    flow = ParIter.from_range(4, fragile).for_each(lambda x: 1 // 0).on_failure("drop", budget=5).gather_async()
    with pytest.raises(OperatorError, match="ZeroDivisionError"):
        list(flow)


def test_drop_budget(engine: Engine) -> None:
    actors = [engine.spawn(Fragile) for _ in range(4)]
    failing = ParIter.from_range(4, actors).for_each(lambda x: 1 // (x == 3))
    with pytest.raises(OperatorError):
        list(failing.on_failure("drop", budget=2).gather_async())
    assert list(failing.on_failure("drop", budget=3).gather_async()) == [1]


def test_restart_budget(fragile: list[Actor]) -> None:
    flow = (
        ParIter.from_range(8, fragile).for_each(lambda x: 1 // (x - 4)).on_failure("restart", budget=2).gather_async()
    )
    with pytest.raises(
        ShardFailed, match=r"shard 0 of from_range.*restart budget is used up.*restarted 2 times"
    ) as info:
        list(flow)
    assert isinstance(info.value.__cause__, OperatorError)


@engines(*REMOTE)
def test_a_dead_actor_raises_by_default(fragile: list[Actor], tmp_path: Path) -> None:
    dies = partial(fail_on, bad=4, marker=str(tmp_path / "died"))
    run, events = start_and_record(ParIter.from_range(12, fragile).for_each(dies).gather_async())
    with pytest.raises(ShardFailed, match=r"shard 0 of from_range\(12.*fragile-0 failed: ActorDied") as info:
        list(run)
    assert isinstance(info.value.__cause__, ActorDied)
    assert [event.data["shard"] for event in events_of_kind(events, "failed")] == [0]
    assert list(run) == []


@engines("process")
def test_a_deadline_without_a_policy_raises(fragile: list[Actor], tmp_path: Path) -> None:
    hangs = partial(fail_on, bad=2, marker=str(tmp_path / "hung"), how="hang")
    with pytest.raises(ShardFailed) as info:
        list(ParIter.from_range(8, fragile).for_each(hangs).on_failure("raise", deadline=0.3).gather_sync())
    assert isinstance(info.value.__cause__, DeadlineExceeded)


def test_two_shards_on_one_actor_are_restarted_together(engine: Engine, tmp_path: Path) -> None:
    actor = engine.spawn(Counter)
    dies = partial(fail_on, bad=5, marker=str(tmp_path / "died"), how="raise" if engine.name == "inline" else "kill")
    flow = ParIter.from_range(20, [actor], num_shards=2).for_each(dies).on_failure("restart").gather_sync()
    with flow.start() as run:
        assert sorted(x for items in run for x in items) == list(range(20))
    assert actor.incarnation == 1


@engines("process")
def test_two_flows_on_one_set_of_actors_both_recover(fragile: list[Actor]) -> None:
    policy = {"policy": "restart", "budget": 5}
    sync_run = iter(ParIter.from_range(40, fragile).on_failure(**policy).gather_sync().flatten())
    async_run = iter(ParIter.from_range(40, fragile).for_each(Sum()).on_failure(**policy).gather_async())
    first, second = [next(sync_run) for _ in range(10)], [next(async_run) for _ in range(10)]
    fragile[1].engine.kill(fragile[1])
    first += list(sync_run)
    second += list(async_run)
    assert sorted(first) == list(range(40))
    assert len(second) == 40


class DiesInState:
    """Passes items on. Kills its process when its state is read, the first time."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __call__(self, value: int) -> int:
        return value

    def state(self) -> int:
        return int(fail_on(0, bad=0, marker=self.marker))

    def restore(self, state: int) -> None:
        pass


@pytest.mark.parametrize("gather", ["gather_sync", "gather_async"])
@engines("process")
def test_a_state_survives_the_death_of_an_actor(fragile: list[Actor], tmp_path: Path, gather: str) -> None:
    """The actor is restarted as it would be for an item, and nothing is lost or doubled, here or after a restore."""
    numbers = ParIter.from_range(60, fragile, num_shards=3).for_each(DiesInState(str(tmp_path / "died")))
    shards = numbers.on_failure("restart", budget=9)
    flow = shards.gather_sync().flatten() if gather == "gather_sync" else shards.gather_async(2)
    with flow.start() as run:
        items = [next(run) for _ in range(10)]
        state = run.state()
        assert run.counts["restarted"] >= 1
        assert sorted(items + list(run)) == list(range(60))
    assert sorted(items + list(flow.restore(state))) == list(range(60))


@engines("process")
def test_a_state_without_a_dropped_shard(fragile: list[Actor], tmp_path: Path) -> None:
    numbers = ParIter.from_range(40, fragile).for_each(DiesInState(str(tmp_path / "died")))
    flow = numbers.on_failure("drop").gather_sync().flatten()
    with flow.start() as run:
        items = [next(run) for _ in range(10)]
        state = run.state()
        assert run.counts == {"dropped": 1, "lost": 0}
        rest = list(run)
    assert {x % 2 for x in rest} in ({0}, {1})
    assert rest == [x for x in range(10, 40) if x % 2 == rest[0] % 2]
    with flow.start(state=state) as restored:
        assert list(restored) == rest
    assert items == list(range(10))


@engines("process")
def test_a_state_fails_with_its_flow(fragile: list[Actor], tmp_path: Path) -> None:
    with ParIter.from_range(40, fragile).for_each(DiesInState(str(tmp_path / "died"))).gather_async().start() as run:
        next(run)
        with pytest.raises(ShardFailed, match=r"shard \d of from_range\(40.* failed: ActorDied"):
            run.state()
        assert list(run) == []  # without one of its shards, it would end early and look complete


def test_a_dead_actor_of_an_operator_is_named() -> None:
    with make_engine("process") as engine:
        learner = engine.spawn(Counter, name="learner")

        def numbers() -> Iterator[int]:
            yield 1
            engine.kill(learner)
            yield 2

        with pytest.raises(ShardFailed, match="learner"):
            list(Iter.from_items(numbers).for_each(abs, on=learner))


def test_policy_settings_are_checked() -> None:
    with make_engine("inline") as engine:
        stream = ParIter.from_range(3, [engine.spawn(Counter)])
        with pytest.raises(ConfigError, match=r"unknown failure policy 'restrat'. Did you mean 'restart'"):
            stream.on_failure("restrat")
        with pytest.raises(ConfigError, match=r"budget .* not 0"):
            stream.on_failure("drop", budget=0)
        with pytest.raises(ConfigError, match=r"deadline .* not -1"):
            stream.on_failure("drop", deadline=-1)
