"""Replay in flows: the same on every engine, with rate limits both ways, and with lost rows counted."""

import os
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from raceway.engine import make_engine
from raceway.engine.base import Actor, Engine
from raceway.envs import EnvSettings
from raceway.errors import ConfigError, FlowError
from raceway.flow import Iter, union, union_async
from raceway.ops import (
    ConcatBatches,
    ReplayCounts,
    ReplaySettings,
    ReplayShard,
    RolloutSettings,
    RolloutWorker,
    Sequences,
    StoreToReplay,
    TrainStats,
    Transitions,
    UpdatePriorities,
    parallel_replay,
    parallel_rollouts,
    replay_limits,
)
from raceway.rl import Batch
from tests import conftest as above
from tests.conftest import eventually
from tests.engine.conftest import engines, make
from tests.example_agents import makes_actor
from tests.rollouts.toy_envs import Walk

# These start processes: check every test for leaks.
no_leaks = pytest.fixture(above.no_leaks.__wrapped__, autouse=True, name="no_leaks")  # type: ignore[attr-defined]


@pytest.fixture(params=("inline", "process", "ray"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with make(request.param, request) as engine:
        yield engine


class Shard(ReplayShard):
    """A replay shard that reports its process and priorities."""

    def pid(self) -> int:
        return os.getpid()

    def priorities(self) -> np.ndarray:
        assert self.buffer.sampler.tree is not None
        return self.buffer.sampler.tree.values.copy()


def shards_of(engine: Engine, num: int = 2, **settings: Any) -> list[Actor]:
    replay = ReplaySettings(num_shards=num, **{"capacity": 100, "batch_size": 8, **settings})
    return [engine.spawn(Shard, (replay, number), name=f"replay-{number}") for number in range(num)]


def rows(first: int, num: int) -> Batch:
    return {"reward": np.arange(first, first + num, dtype=np.float32)}


def batches(num: int, size: int = 10) -> Iter[Batch]:
    return Iter.from_range(num).for_each(lambda number: rows(number * size, size))


def plan(engine: Engine, num_workers: int) -> Iter[Batch]:
    """Return a synchronous flow of rollouts, storing and sampling."""
    settings = RolloutSettings(
        env=EnvSettings(Walk), num_shards=4, slots_per_shard=2, seed=5, agent=makes_actor(), fragment_steps=6
    )
    workers = [engine.spawn(RolloutWorker, (settings,)) for _ in range(num_workers)]
    shards = shards_of(engine, 3, capacity=150, alpha=0.6, seed=9)
    store = (
        parallel_rollouts(workers, settings)
        .for_each(Transitions(0.9, n=3))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(StoreToReplay(shards))
    )
    limits = replay_limits(2, batch_size=8, min_size=90, ahead=60)
    return union(store=store, replay=parallel_replay(shards, synchronous=True), limits=limits, emit=["replay"])


def rewards_and_discounts(flow: Iter[Batch], num: int) -> list[list[float]]:
    return [[*batch["reward"].tolist(), *batch["discount"].tolist()] for batch in islice(flow, num)]


@engines("process", "ray")
def test_a_synchronous_plan_samples_the_same_on_every_engine(engine: Engine) -> None:
    with make_engine("inline") as inline:
        expected = rewards_and_discounts(plan(inline, 1), 25)
    assert rewards_and_discounts(plan(engine, 2), 25) == expected


def test_neither_branch_runs_ahead(engine: Engine) -> None:
    shards = shards_of(engine)
    stored = sampled = 0
    limits = replay_limits(4, batch_size=8, min_size=30, ahead=20)
    branches = {
        "store": batches(1000).for_each(StoreToReplay(shards)).for_each(lambda batch: ("store", len(batch["reward"]))),
        "replay": parallel_replay(shards).for_each(lambda batch: ("replay", len(batch["reward"]))),
    }
    limits = [limit.__class__(**{**vars(limit), "size": lambda item: item[1]}) for limit in limits]
    for branch, num in islice(union_async(**branches, limits=limits), 200):
        stored, sampled = stored + num * (branch == "store"), sampled + num * (branch == "replay")
        assert sampled < 4 * (stored - 30) + 8 or sampled == 0
        assert stored < sampled / 4 + 30 + 20 + 10
    assert sampled > 100


def test_limits_count_the_rows_of_batches_and_training_steps() -> None:
    limit, _ = replay_limits(4, batch_size=8, min_size=30, ahead=20)
    assert limit.size is not None
    empty = np.zeros(0)
    assert limit.size({"episode_return": empty, "obs": {"a": np.zeros((5, 2))}}) == 5
    assert limit.size(TrainStats(num_steps=0, returns=empty, lengths=empty)) == 8
    assert limit.size(TrainStats(num_steps=64, returns=empty, lengths=empty)) == 64


def test_batches_go_to_shards_in_turn_without_episode_columns(engine: Engine) -> None:
    shards = shards_of(engine, 3)
    store = StoreToReplay(shards)
    for number in range(4):
        batch = rows(number, number + 1) | {"episode_return": np.array([3.0])}
        assert store(batch) is batch
    counts = [shard.call("counts").result() for shard in shards]
    assert [count.inserted for count in counts] == [1 + 4, 2, 3]
    assert store.counts == ReplayCounts(inserted=10, alive=10, evicted=0, lost=0)
    store({"episode_return": np.array([3.0])})
    store({"reward": np.zeros(0)})
    assert store.counts.inserted == 10


def test_samples_wait_for_rows(engine: Engine) -> None:
    shards = shards_of(engine, 2, min_size=15)
    run = parallel_replay(shards).start()
    store = StoreToReplay(shards)
    for number in range(4):
        store(rows(10 * number, 10))
    samples = [next(run) for _ in range(6)]
    assert all(len(batch["reward"]) == 8 for batch in samples)
    run.close()


@engines("process", "ray")
def test_a_shard_that_dies_is_counted_and_restarted(engine: Engine) -> None:
    shards = shards_of(engine, 2, capacity=40)
    store = StoreToReplay(shards)
    for number in range(7):  # 4 batches of 10 to the first, which holds 20, and 3 to the second
        store(rows(10 * number, 10))
    assert [shard.call("counts").result().alive for shard in shards] == [20, 20]
    assert store.counts == ReplayCounts(inserted=70, alive=40, evicted=30, lost=0)
    run = parallel_replay(shards).start()
    next(run)
    os.kill(shards[0].call("pid").result(), signal.SIGKILL)
    assert eventually(lambda: (engine.poll(), not shards[0].alive or shards[0].incarnation)[1])
    samples = [next(run) for _ in range(20)]
    assert {int(batch["reward"][0]) // 10 % 2 for batch in samples[-8:]} == {1}, "they come from the other shard"
    assert store.counts == ReplayCounts(inserted=70, alive=20, evicted=30, lost=20)
    for number in range(8):
        store(rows(1000 + 10 * number, 10))
    assert eventually(lambda: any(batch["reward"][0] >= 1000 for batch in [next(run) for _ in range(8)]))
    counts = store.counts
    assert counts.inserted == 150 == counts.alive + counts.evicted + counts.lost
    assert counts.lost == 20
    assert shards[0].incarnation == 1
    assert shards[0].call("counts").result().alive > 0, "rows are stored there again"
    run.close()


@engines("process")
def test_storing_raises_if_every_shard_is_dead(engine: Engine) -> None:
    (shard,) = shards_of(engine, 1)
    store = StoreToReplay([shard])
    store(rows(0, 10))
    engine.kill(shard)
    with pytest.raises(FlowError, match="all 1 shards of replay are dead"):
        store(rows(10, 10))
    assert store.counts == ReplayCounts(inserted=10, alive=0, evicted=0, lost=10)


def test_rows_with_other_columns_raise(engine: Engine) -> None:
    (shard,) = shards_of(engine, 1)
    store = StoreToReplay([shard])
    store(rows(0, 3))
    store({"obs": np.zeros(3)})
    shard.call("counts").result()  # by then it has answered
    with pytest.raises(ConfigError, match="the replay buffer has the columns"):
        store(rows(3, 1))


def test_priorities_reach_the_shard_that_the_batch_came_from(engine: Engine) -> None:
    shards = shards_of(engine, 2, capacity=20, alpha=1.0)
    store = StoreToReplay(shards)
    for number in range(2):
        store(rows(10 * number, 10))
    empty = np.zeros(0)

    def train(batch: Batch) -> TrainStats:
        """Use the reward of every row as its priority."""
        return TrainStats(num_steps=0, returns=empty, lengths=empty, priorities=(batch["index"], batch["reward"]))

    run = parallel_replay(shards, num_async=1).for_each(train).for_each(UpdatePriorities()).start()
    samples_from = [0, 0]
    while min(samples_from) < 30:
        next(run)
        assert run.envelope is not None
        samples_from[run.envelope.sources[0].shard] += 1
    run.close()
    for first, shard in zip((0, 10), shards, strict=True):
        priorities = shard.call("priorities").result()
        sampled = priorities != 1  # at least once: at first all have 1
        assert sampled.sum() >= 7
        np.testing.assert_allclose(priorities[sampled], np.arange(first, first + 10)[sampled], atol=1e-4)


def test_indices_from_before_a_restart_are_ignored() -> None:
    settings = ReplaySettings(capacity=10, batch_size=4, alpha=1.0)
    before, after = Shard(settings), Shard(settings)
    after.renumber_rows()
    for shard in (before, after):
        shard.insert(rows(0, 10))
    batch = before.sample()
    after.update(batch["index"], np.full(4, 9.0))
    assert after.priorities().tolist() == [1.0] * 10
    before.update(batch["index"], np.full(4, 9.0))
    assert before.priorities().max() == pytest.approx(9)


def test_priorities_need_one_source_and_a_value(engine: Engine) -> None:
    shards = shards_of(engine, 2, alpha=1.0)
    store = StoreToReplay(shards)
    store(rows(0, 10))
    store(rows(10, 10))
    stats = TrainStats(num_steps=0, returns=np.zeros(0), lengths=np.zeros(0))
    with pytest.raises(FlowError, match="returned no priorities"):
        next(iter(parallel_replay(shards).for_each(lambda _: stats).for_each(UpdatePriorities())))
    stats.priorities = (np.zeros(1, int), np.zeros(1))
    both = parallel_replay(shards, synchronous=True).batch(2).for_each(lambda _: stats).for_each(UpdatePriorities())
    with pytest.raises(FlowError, match="this came from 2"):
        next(iter(both))


def test_a_restored_replay_continues_exactly(engine: Engine) -> None:
    expected, store = [], StoreToReplay(shards := shards_of(engine, 2, capacity=30, alpha=0.5, seed=4))

    def run_rounds(store: StoreToReplay, shards: list[Actor], first: int) -> list[Any]:
        samples = []
        for number in range(first, first + 5):
            store(rows(7 * number, 7))
            for shard in shards[: number + 1]:  # those that have rows
                batch = shard.call("sample").result()
                samples += [batch["reward"].tolist(), batch["weight"].tolist()]
                shard.call("update", batch["index"], batch["reward"] + 1).result()
        return samples

    run_rounds(store, shards, 0)
    states = [shard.call("state").result() for shard in shards], store.state()
    expected = run_rounds(store, shards, 5)
    shards = shards_of(engine, 2, capacity=30, alpha=0.5, seed=77)
    store = StoreToReplay(shards)
    for shard, state in zip(shards, states[0], strict=True):
        shard.call("restore", state).result()
    store.restore(states[1])
    assert run_rounds(store, shards, 5) == expected
    counts = store.counts
    assert counts.inserted == 70 == counts.alive + counts.evicted


def test_incomplete_rows_are_held_until_the_next_fragment() -> None:
    def fragment(first: int) -> Batch:
        obs = np.arange(first, first + 3, dtype=np.float32)[:, None]
        no_ends = np.zeros((3, 1), bool)
        return {"obs": obs, "action": obs, "reward": obs, "terminated": no_ends, "truncated": no_ends,
                "last_obs": obs[-1] + 1, "final_obs": obs[:0, 0], "episode_return": np.zeros(0)}  # fmt: skip

    for make_op in (lambda: Transitions(1.0, n=2), lambda: Sequences(1.0, 1, 2)):
        op, other = make_op(), make_op()
        first = op(fragment(0))
        assert "episode_return" in first
        assert first["obs"].tolist() in ([0, 1], [[0, 1]])
        other.restore(op.state())
        assert other(fragment(3))["obs"].tolist() == op(fragment(3))["obs"].tolist()
    assert len(Sequences(1.0, 1, 5)(fragment(0))["obs"]) == 0, "no sequence is complete yet"
    with pytest.raises(ConfigError, match="in sequences of 4 steps, 4 cannot be burn-in"):
        Sequences(1.0, 1, 4, burn_in=4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 3, "num_shards": 4}, "4 shards cannot share a capacity of 3"),
        ({"capacity": 10, "num_shards": 2, "min_size": 6}, "never has min_size 6"),
        ({"capacity": 0}, "capacity must be a whole number"),
        ({"capacity": 10, "batch_size": -1}, "batch_size must be a whole number"),
    ],
)
def test_invalid_settings_raise(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ReplaySettings(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least one shard"):
        StoreToReplay([])
    with pytest.raises(ConfigError, match="samples_per_insert must be a number above 0"):
        replay_limits(0, batch_size=1, min_size=1, ahead=1)


def test_the_capacity_is_divided_over_all_shards() -> None:
    settings = ReplaySettings(capacity=11, num_shards=3)
    assert [settings.make(number).capacity for number in range(3)] == [4, 4, 3]


def test_settings_in_steps_for_rows_of_several_steps() -> None:
    settings = ReplaySettings(capacity=1000, batch_size=64, num_shards=2, min_size=100)
    sequences = settings.with_rows_of(16)
    assert (sequences.capacity, sequences.batch_size, sequences.min_size) == (62, 4, 7)
    assert settings.with_rows_of(1) == settings
    assert ReplaySettings(capacity=10, batch_size=8).with_rows_of(16).batch_size == 1
    with pytest.raises(ConfigError, match="Set stacked_frames to False"):
        ReplaySettings(capacity=10, stacked=True).with_rows_of(16)
