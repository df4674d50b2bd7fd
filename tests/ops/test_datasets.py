"""Datasets in flows: every row once an epoch, the same stream on any engine and workers, and exact resumption."""

import json
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raceway.engine.base import Actor, Engine
from raceway.errors import ConfigError, DatasetError, OperatorError, RacewayError
from raceway.flow import Iter, Shard, StreamEnd
from raceway.ops import AddDiscounts, DatasetReader, DatasetSettings, parallel_dataset
from raceway.ops.datasets import rows_of_shard
from raceway.rl import Batch
from tests import conftest as above
from tests.datasets.toy_data import PARTS, episodes, write
from tests.engine.conftest import engines, make

# These start processes: check every test for leaks.
no_leaks = pytest.fixture(above.no_leaks.__wrapped__, autouse=True, name="no_leaks")  # type: ignore[attr-defined]


@pytest.fixture(params=("inline", "process", "ray"))
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with make(request.param, request) as engine:
        yield engine


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A dataset of 23 rows in three parts."""
    write(tmp_path / "data", episodes([4, -3]), episodes([9], 7), episodes([-5, 2], 16))
    return str(tmp_path / "data")


def spawn(engine: Engine, settings: DatasetSettings, num: int) -> list[Actor]:
    return [engine.spawn(DatasetReader, (settings,), name=f"reader-{index}") for index in range(num)]


def stream(engine: Engine, settings: DatasetSettings, num_readers: int = 1) -> Iter[list[Batch]]:
    """Return the flow of one minibatch of each shard at a time."""
    return parallel_dataset(spawn(engine, settings, num_readers), settings).gather_sync()


def rewards(batches: list[Batch]) -> list[list[float]]:
    """Return the rewards of minibatches, which are the numbers of their rows."""
    return [batch["reward"].tolist() for batch in batches]


def sample(reader: DatasetReader, num: int, shard: int = 0) -> list[float]:
    """Return the numbers of the rows of a shard's first minibatches, concatenated."""
    of = Shard(shard, reader.settings.num_shards, 0)
    return [row for number in range(num) for row in reader.sample(shard=of, number=number)["reward"].tolist()]


@pytest.mark.parametrize("batch_size", [1, 4, 7, 23, 64])
@pytest.mark.parametrize("num_shards", [1, 3])
def test_two_epochs_give_every_row_twice(data: str, batch_size: int, num_shards: int) -> None:
    """Also where rows are no multiple of the batch size: then a minibatch continues with the next epoch."""
    reader = DatasetReader(DatasetSettings(path=data, batch_size=batch_size, num_shards=num_shards))
    seen: list[list[float]] = [[], []]
    for shard in range(num_shards):
        rows = rows_of_shard(23, shard, num_shards)
        stream = sample(reader, -(-2 * len(rows) // batch_size), shard)
        for epoch in range(2):
            part = stream[epoch * len(rows) : (epoch + 1) * len(rows)]
            assert sorted(part) == list(rows)
            seen[epoch] += part
    assert sorted(seen[0]) == sorted(seen[1]) == list(range(23))
    assert seen[0] != seen[1]


@pytest.mark.parametrize(("batch_size", "sizes"), [(4, [4] * 11 + [2]), (23, [23, 23]), (64, [46])])
def test_a_stream_of_two_epochs_ends_after_them(data: str, batch_size: int, sizes: list[int]) -> None:
    reader = DatasetReader(DatasetSettings(path=data, batch_size=batch_size, num_epochs=2))
    batches = [reader.sample(shard=Shard(0, 1, 0), number=number)["reward"] for number in range(len(sizes))]
    assert [len(batch) for batch in batches] == sizes
    assert sorted(np.concatenate(batches).tolist()) == sorted([*range(23)] * 2)
    with pytest.raises(StreamEnd):
        reader.sample(shard=Shard(0, 1, 0), number=len(sizes))


def test_epochs_shards_and_seeds_are_shuffled_differently(data: str) -> None:
    orders = [
        tuple(np.subtract(sample(DatasetReader(settings), 4, shard), rows_of_shard(20, shard, 2)[0]))
        for settings in (DatasetSettings(path=data, batch_size=10, num_shards=2, seed=seed) for seed in (0, 1))
        for shard in (0, 1)
    ]
    assert len(set(orders)) == 4
    assert sample(DatasetReader(DatasetSettings(path=data, batch_size=23)), 1) != list(range(23))


def test_minibatches_do_not_depend_on_those_before(data: str) -> None:
    settings = DatasetSettings(path=data, batch_size=5, num_shards=2)
    fresh, used = DatasetReader(settings), DatasetReader(settings)
    sample(used, 9, 1)
    sample(used, 3, 0)
    for number in (6, 2, 11, 0):
        first, second = (reader.sample(shard=Shard(0, 2, 0), number=number) for reader in (fresh, used))
        np.testing.assert_array_equal(first["reward"], second["reward"])


def test_columns_that_are_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "data", episodes([6], 0, PARTS), observation_space=PARTS)
    settings = DatasetSettings(path=str(tmp_path / "data"), batch_size=4, next_obs=True, gamma=0.9)
    batch = DatasetReader(settings).sample(shard=Shard(0, 1, 0), number=0)
    assert list(batch) == ["obs", "action", "reward", "terminated", "truncated", "next_obs", "return"]
    assert batch["next_obs"]["a/b"].shape == (4, 2, 3)
    plain = DatasetReader(DatasetSettings(path=str(tmp_path / "data"))).sample(shard=Shard(0, 1, 0), number=0)
    assert list(plain) == ["obs", "action", "reward", "terminated", "truncated"]


def expected(data: str, num: int, **settings: Any) -> list[list[list[float]]]:
    """Return the first minibatches of all shards, read without a flow."""
    reader = DatasetReader(DatasetSettings(path=data, **settings))
    shards = [Shard(shard, reader.settings.num_shards, 0) for shard in range(reader.settings.num_shards)]
    return [rewards([reader.sample(shard=shard, number=number) for shard in shards]) for number in range(num)]


@pytest.mark.parametrize("num_readers", [1, 2])
def test_engines_and_readers_do_not_change_the_stream(engine: Engine, data: str, num_readers: int) -> None:
    settings = {"batch_size": 4, "num_shards": 3, "seed": 5}
    flow = stream(engine, DatasetSettings(path=data, **settings), num_readers)
    assert [rewards(batches) for batches in islice(flow, 9)] == expected(data, 9, **settings)


def test_resumption_in_mid_epoch(engine: Engine, data: str) -> None:
    settings = DatasetSettings(path=data, batch_size=4, num_shards=2, num_epochs=3)
    with stream(engine, settings, 2).start() as run:
        before = [rewards(next(run)) for _ in range(4)]
        state = pickle.loads(pickle.dumps(run.state()))
        rest = [rewards(batches) for batches in run]
    assert before + rest == expected(data, 9, batch_size=4, num_shards=2, num_epochs=3)
    assert len(pickle.dumps(state)) < 20_000  # no data
    restored = stream(engine, settings, 1).restore(state)
    assert [rewards(batches) for batches in restored] == rest


@engines("process")
def test_a_reader_that_dies_loses_no_row(engine: Engine, data: str) -> None:
    settings = DatasetSettings(path=data, batch_size=4, num_shards=3, num_epochs=4)
    readers = spawn(engine, settings, 2)
    with parallel_dataset(readers, settings).on_failure("restart").gather_async(num_async=2).start() as run:
        batches = [next(run) for _ in range(5)]
        engine.kill(readers[0])
        batches += run
    assert sorted(row for batch in rewards(batches) for row in batch) == sorted([*range(23)] * 4)


@pytest.mark.parametrize(("changed", "message"), [
    ({"seed": 1}, r"cannot be continued: its seed was 0, and is 1 now\. Use the same as before, or start a new run"),
    ({"batch_size": 5}, "its batch_size was 4, and is 5 now"),
])  # fmt: skip
@engines("inline")
def test_another_order_of_rows_cannot_be_resumed(
    engine: Engine, data: str, changed: dict[str, Any], message: str
) -> None:
    settings = {"path": data, "batch_size": 4}
    with stream(engine, DatasetSettings(**settings)).start() as run:
        next(run)
        state = run.state()
    with pytest.raises(RacewayError, match=message):
        next(stream(engine, DatasetSettings(**{**settings, **changed})).restore(state))


@engines("inline", "process")
def test_another_dataset_cannot_be_resumed(engine: Engine, data: str, tmp_path: Path) -> None:
    with stream(engine, DatasetSettings(path=data)).start() as run:
        next(run)
        state = run.state()
    (tmp_path / "data").rename(tmp_path / "moved")
    moved = stream(engine, DatasetSettings(path=str(tmp_path / "moved"))).restore(state)  # the same one
    assert len(next(moved)[0]["reward"]) == 256
    write(tmp_path / "data", episodes([23]))
    with pytest.raises(RacewayError, match="cannot be continued: its dataset was"):
        next(stream(engine, DatasetSettings(path=data)).restore(state))


def test_a_dataset_that_cannot_be_read_is_named(engine: Engine, data: str) -> None:
    body = json.loads(Path(data, "dataset.json").read_text())
    body["body"]["schema"] = 9
    Path(data, "dataset.json").write_text(json.dumps(body))
    with pytest.raises(OperatorError, match=r"dataset\.json: it has schema 9") as raised:
        next(stream(engine, DatasetSettings(path=data)))
    assert isinstance(raised.value.original, DatasetError)


def test_settings_are_checked(data: str) -> None:
    for wrong in ({"batch_size": 0}, {"num_shards": 0}, {"seed": -1}, {"gamma": 2.0}, {"num_epochs": 0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            DatasetSettings(path=data, **wrong)  # type: ignore[arg-type]
    reader = DatasetReader(DatasetSettings(path=data, num_shards=24))
    with pytest.raises(ConfigError, match=r"24 shards cannot share the 23 rows of .*data\. Use at most one shard per"):
        reader.sample(shard=Shard(0, 24, 0), number=0)


def test_only_termination_ends_the_discount() -> None:
    """A step within an episode, a truncated one, a terminated one, and one that is both."""
    ended = {"terminated": np.array([False, False, True, True]), "truncated": np.array([False, True, False, True])}
    batch = AddDiscounts(0.5)({"reward": np.ones(4, np.float32), **ended})
    assert batch["discount"].tolist() == [0.5, 0.5, 0, 0]
    assert batch["discount"].dtype == np.float32
    assert list(batch) == ["reward", "terminated", "truncated", "discount"]
