"""The storages, by themselves and in TorchRL's replay buffers."""

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import (
    PrioritizedSampler,
    ReplayBuffer,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
)
from torchrl.data.replay_buffers.samplers import RandomSampler, prioritized

from raceway.errors import ConfigError, ReplayEmpty, SerializationError
from raceway.runner import Runner
from raceway.torchrl import LocalStorage, ObjectStorage
from tests.conftest import GENEROUS
from tests.torchrl.conftest import MakeStorage
from tests.torchrl.services import Holder, append_many


def rows(*numbers: int) -> TensorDict:
    """Return rows that are identified by their numbers."""
    number = torch.tensor(numbers)
    return TensorDict({"number": number, "next": {"half": number[:, None] / 2}}, [len(numbers)])


def numbers(data: TensorDict) -> list[int]:
    """Return the numbers of rows, after checking that their columns belong together."""
    assert torch.equal(data["next", "half"].squeeze(-1) * 2, data["number"].float())
    return data["number"].tolist()


# In a replay buffer.


def test_extend_add_and_sample(make_storage: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=make_storage(5), sampler=RandomSampler(), batch_size=8)
    assert len(buffer) == 0
    assert buffer.extend(rows(0, 1, 2)).tolist() == [0, 1, 2]
    assert buffer.add(rows(3)[0]) == 3
    assert len(buffer) == 4
    sample = buffer.sample()
    assert sample.shape == (8,)
    assert set(numbers(sample)) <= {0, 1, 2, 3}
    assert numbers(buffer[:]) == [0, 1, 2, 3]
    assert buffer.extend(rows(4, 5, 6)).tolist() == [4, 0, 1]
    assert numbers(buffer[:]) == [5, 6, 2, 3, 4]
    sampled = {number for _ in range(20) for number in numbers(buffer.sample())}
    assert sampled == {2, 3, 4, 5, 6}
    assert "(5 rows seen, max_size=5)" in repr(buffer)


def test_extend_returns_the_indices_of_the_rows(make_storage: MakeStorage) -> None:
    buffer, number, random = ReplayBuffer(storage=make_storage(10)), 0, np.random.default_rng(0)
    for size in [*random.integers(1, 10, 50), 10, 25, 3, 40, 1]:
        batch = rows(*range(number, number := number + int(size)))
        index = buffer.extend(batch)
        last = slice(-min(len(batch), 10), None)
        if random.random() < 0.5 or len(batch) >= 10:
            assert numbers(buffer[index[last]]) == numbers(batch[last])
            assert set(numbers(buffer[:])) == set(range(max(number - 10, 0), number))


@pytest.mark.parametrize("kind", ["tensordict", "dict", "tensors", "bare"])
def test_every_kind_of_data_can_be_stored(kind: str, make_storage: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=make_storage(4))
    data = {
        "tensordict": TensorDict({"a": torch.arange(3)}, [3]),
        "dict": {"a": np.arange(3)},
        "tensors": [TensorDict({"a": torch.tensor(n)}) for n in range(3)],
        "bare": torch.arange(3),
    }[kind]
    buffer.extend(data)
    stored = buffer[:] if kind == "bare" else buffer[:]["a"]
    assert stored.tolist() == [0, 1, 2]
    assert stored.dtype == torch.int64
    row = buffer[1] if kind == "bare" else buffer[1]["a"]
    assert row == 1


def test_sampling_without_replacement(make_storage: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=make_storage(6), sampler=SamplerWithoutReplacement(), batch_size=3)
    buffer.extend(rows(*range(8)))
    sampled = [*numbers(buffer.sample()), *numbers(buffer.sample())]
    assert sorted(sampled) == [2, 3, 4, 5, 6, 7]


class SumTree:
    """Stands in for TorchRL's segment trees, whose compiled extension loads with one version of torch only."""

    empty, reduce = 0.0, np.sum

    def __init__(self, size: int) -> None:
        self.values = np.full(size, self.empty, np.float32)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.values[np.asarray(index)] = np.asarray(value)

    def __getitem__(self, index: Any) -> Any:
        values = self.values[np.asarray(index)]
        return torch.from_numpy(values) if isinstance(index, torch.Tensor) else values

    def query(self, low: int, high: int) -> float:
        return float(type(self).reduce(self.values[low:high]))

    def scan_lower_bound(self, values: Any) -> Any:
        index = np.searchsorted(np.cumsum(self.values), np.asarray(values))
        return torch.from_numpy(index) if isinstance(values, torch.Tensor) else index


class MinTree(SumTree):
    empty, reduce = np.inf, np.min


@pytest.fixture
def segment_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind, tree in (("Sum", SumTree), ("Min", MinTree)):
        for precision in (32, 64):
            name = f"{kind}SegmentTreeFp{precision}"
            if getattr(prioritized, name) is None:
                monkeypatch.setattr(prioritized, name, tree)


@pytest.mark.usefixtures("segment_trees")
def test_prioritised_sampling(make_storage: MakeStorage) -> None:
    buffer = TensorDictReplayBuffer(
        storage=make_storage(4), sampler=PrioritizedSampler(4, alpha=1.0, beta=1.0), batch_size=50
    )
    buffer.extend(rows(*range(6)))  # 4 5 2 3
    sample = buffer.sample()
    sample["td_error"] = (sample["number"] == 5).float() + 1e-9
    buffer.update_tensordict_priority(sample)
    assert 5 in numbers(sample)
    assert set(numbers(buffer.sample())) == {5}


# Rows.


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (0, 5),
        (-1, 4),
        (slice(None), [5, 6, 2, 3, 4]),
        (slice(1, 4, 2), [6, 3]),
        (slice(-2, None), [3, 4]),
        (range(1, 3), [6, 2]),
        ([4, 0, 0], [4, 5, 5]),
        (torch.tensor([4, 1]), [4, 6]),
        (torch.tensor([-1]), [4]),
        (np.array([2]), [2]),
    ],
    ids=repr,
)
def test_rows_by_index(index: object, expected: object, make_storage: MakeStorage) -> None:
    storage = make_storage(5)
    storage.append(rows(*range(7)))
    assert storage.get(index)["number"].tolist() == expected
    assert storage[index]["number"].tolist() == expected


def test_rows_as_arrays(make_storage: MakeStorage) -> None:
    storage = make_storage(5)
    storage.append(rows(*range(3)))
    assert len(storage) == 3
    columns = storage.columns([2, 0])
    assert columns.keys() == {("number",), ("next", "half")}
    assert columns["number",].tolist() == [2, 0]
    assert columns["next", "half"].tolist() == [[1.0], [0.0]]
    with pytest.raises(IndexError):
        storage.columns([3])


def test_reading_missing_rows_raises(make_storage: MakeStorage) -> None:
    storage = make_storage(5)
    with pytest.raises(ReplayEmpty, match="no rows yet"):
        storage.get(slice(None))
    storage.append(rows(0, 1, 2))
    assert len(storage) == 3
    for index in (3, [0, 3], torch.tensor([4]), -4):
        with pytest.raises(IndexError):
            storage.get(index)
    assert 2 in storage
    assert 3 not in storage
    assert storage.contains(torch.tensor([0, 3])).tolist() == [True, False]


def test_sampling_an_empty_storage_raises(make_storage: MakeStorage) -> None:
    storage = make_storage(5)
    with pytest.raises(RuntimeError, match="empty storage"):
        ReplayBuffer(storage=storage, batch_size=2).sample()
    for method in (storage._rand_given_ndim, storage.columns):
        with pytest.raises(ReplayEmpty, match="no rows yet"):
            method(3)


def test_the_newest_rows_are_kept(make_storage: MakeStorage) -> None:
    random = np.random.default_rng(1)
    for max_size in (1, 2, 7, 50):
        storage, number = make_storage(max_size), 0
        for size in random.integers(1, 2 * max_size + 2, 40).tolist():
            storage.append(rows(*range(number, number := number + size)))
            if random.random() < 0.5:
                kept = range(max(number - max_size, 0), number)
                assert len(storage) == len(kept)
                assert sorted(numbers(storage[:])) == list(kept)


def test_rows_are_copied_in_and_out(make_storage: MakeStorage) -> None:
    storage, array = make_storage(3), np.zeros(3)
    storage.append({"a": array})
    array[:] = 7
    assert storage[:]["a"].tolist() == [0, 0, 0]
    sample = storage.get([0, 1])
    sample["a"][:] = 9
    assert storage[:]["a"].tolist() == [0, 0, 0]


def test_every_row_is_equally_likely(make_storage: MakeStorage) -> None:
    """Also after wrapping around, with patches of many sizes, some larger than the storage."""
    storage, number, random = make_storage(97), 0, np.random.default_rng(2)
    buffer = ReplayBuffer(storage=storage, sampler=RandomSampler(), generator=torch.Generator().manual_seed(0))
    for size in [*random.integers(1, 60, 30).tolist(), 150, 1, 33]:
        storage.append(rows(*range(number, number := number + size)))
        if random.random() < 0.3:
            len(storage)
    counts = np.zeros(97)
    for _ in range(100):
        sampled = np.array(numbers(buffer.sample(970)))
        counts += np.bincount(sampled - (number - 97), minlength=97)
    statistic = float(((counts - 1000) ** 2 / 1000).sum())
    assert 50 < statistic < 155, "approximately the 0.01 % and 99.99 % quantiles of χ² with 96 degrees of freedom"


# Errors.


def test_rows_cannot_be_replaced(make_storage: MakeStorage) -> None:
    storage = make_storage(5)
    buffer = ReplayBuffer(storage=storage, batch_size=2)
    buffer.extend(rows(0, 1, 2))
    before = storage.state_dict()["rows"]["number",].tolist()
    for write in (
        lambda: storage.__setitem__(0, rows(9)[0]),
        lambda: buffer.__setitem__(slice(0, 2), rows(8, 9)),
        lambda: storage.set(torch.tensor([0, 2]), rows(8, 9)),
        lambda: storage.set([3], rows(8, 9)),
        lambda: buffer.writer.write_at(1, rows(9)[0]),
    ):
        with pytest.raises(ConfigError, match=r"append-only.*Use add"):
            write()
    ranked = TensorDictReplayBuffer(storage=make_storage(5), writer=TensorDictMaxValueWriter(rank_key=("next", "half")))
    with pytest.raises(ConfigError, match="append-only"):
        ranked.extend(rows(1, 2))
    assert storage.state_dict()["rows"]["number",].tolist() == before


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"a": np.zeros((2, 3))}, r"columns 'a' does not fit rows of 'a', 'b'"),
        ({"a": np.zeros((2, 4)), "b": np.zeros(2)}, r"'a' of shape \(4,\)"),
        ({"a": np.zeros((2, 3)), "b": np.zeros((2, 1))}, r"'b' of shape \(1,\)"),
        ({"a": np.zeros((2, 3), complex), "b": np.zeros(2)}, r"type complex128 does not fit"),
    ],
)
def test_batches_that_do_not_fit_are_rejected(
    batch: dict[str, np.ndarray], message: str, make_storage: MakeStorage
) -> None:
    storage = make_storage(5)
    storage.append({"a": np.zeros((2, 3), np.float32), "b": np.zeros(2)})
    len(storage)
    with pytest.raises(ConfigError, match=message):
        storage.append(batch)
    storage.append({"a": np.ones((2, 3)), "b": np.zeros(2)})
    assert len(storage) == 4
    assert storage[:]["a"].dtype == torch.float32


def test_readers_report_a_patch_that_does_not_fit() -> None:
    with Runner("bad", engine="inline") as rr:
        storage = ObjectStorage(rr, 5)
        storage.append(rows(1))
        storage.appender().append({"other": np.zeros(2)})
        for _ in range(2):
            with pytest.raises(ConfigError, match="does not fit"):
                len(storage)
        storage._empty()
        storage.append(rows(2))
        assert numbers(storage[:]) == [2]


@pytest.mark.parametrize("max_size", [0, -1, 2.5, None])
def test_invalid_max_size(max_size: object) -> None:
    with pytest.raises(ConfigError, match="max_size must be a whole number from 1"):
        LocalStorage(max_size)  # type: ignore[arg-type]
    with Runner("bad", engine="inline") as rr, pytest.raises(ConfigError, match="max_size must be a whole number"):
        ObjectStorage(rr, max_size)  # type: ignore[arg-type]


# State.


@pytest.mark.parametrize("number", [0, 3, 8, 23])
def test_state_round_trip(number: int, make_storage: MakeStorage, tmp_path: Path) -> None:
    first = ReplayBuffer(storage=make_storage(8), batch_size=4, generator=torch.Generator().manual_seed(3))
    for start in range(0, number, 3):
        first.extend(rows(*range(start, min(start + 3, number))))
    second = ReplayBuffer(storage=make_storage(8), batch_size=4, generator=torch.Generator())
    second.extend(rows(100, 101))
    second.load_state_dict(first.state_dict())
    first.dumps(tmp_path / "saved")
    third = ReplayBuffer(storage=make_storage(8), batch_size=4, generator=torch.Generator())
    third.loads(tmp_path / "saved")
    assert len(first) == len(second) == len(third) == min(number, 8)
    if number:
        expected = [numbers(first.sample()) for _ in range(3)]
        assert [numbers(second.sample()) for _ in range(3)] == expected
        assert [numbers(third.sample()) for _ in range(3)] == expected
    for buffer in (first, second, third):
        index = buffer.extend(rows(50, 51, 52))
        assert numbers(buffer[index]) == [50, 51, 52]
        assert sorted(numbers(buffer[:])) == sorted([*range(number), 50, 51, 52][-8:])


def test_state_is_a_copy(make_storage: MakeStorage) -> None:
    storage = make_storage(3)
    storage.append(rows(0, 1, 2))
    state = storage.state_dict()
    storage.append(rows(3))
    assert state["rows"]["number",].tolist() == [0, 1, 2]
    storage.load_state_dict(state)
    storage.append(rows(4))
    assert state["rows"]["number",].tolist() == [0, 1, 2]


def test_an_emptied_storage_accepts_other_columns(make_storage: MakeStorage) -> None:
    buffer = ReplayBuffer(storage=make_storage(4), batch_size=2)
    buffer.extend(rows(*range(6)))
    buffer.empty()
    assert len(buffer) == 0
    buffer.extend({"other": np.arange(3)})  # an empty storage accepts other columns
    assert buffer[:]["other"].tolist() == [0, 1, 2]


def test_hooks_are_rejected(make_storage: MakeStorage, tmp_path: Path) -> None:
    storage = make_storage(3)
    storage.append(rows(1))
    storage.register_save_hook(lambda data, path=None: data)
    with pytest.raises(ConfigError, match="does not call hooks"):
        storage.dumps(tmp_path / "saved")


def test_a_local_storage_is_pickled_with_its_rows() -> None:
    storage = LocalStorage(4)
    storage.append(rows(*range(6)))
    copy = pickle.loads(pickle.dumps(storage))
    assert sorted(numbers(copy[:])) == [2, 3, 4, 5]
    copy.append(rows(6))
    assert sorted(numbers(copy[:])) == [3, 4, 5, 6]
    assert sorted(numbers(storage[:])) == [2, 3, 4, 5]


def test_an_object_storage_cannot_be_pickled_outside_its_run() -> None:
    with Runner("run", engine="inline") as rr, pytest.raises(SerializationError, match="only within the run"):
        pickle.dumps(ObjectStorage(rr, 3))


# Shared through an object.


def test_all_holders_of_a_storage_share_its_rows(rr: Runner) -> None:
    storage = ObjectStorage(rr, 10)
    remote = rr.service(Holder(storage))
    storage.append({"number": np.arange(3)})
    assert remote.append([3, 4]).get(GENEROUS) == 2
    assert remote.numbers().get(GENEROUS) == [0, 1, 2, 3, 4]
    assert sorted(storage[:]["number"].tolist()) == [0, 1, 2, 3, 4]
    other = ObjectStorage(storage.ref)
    assert other.max_size == 10
    assert len(other) == 5
    remote.empty().get(GENEROUS)
    assert len(storage) == len(other) == 0
    storage.append({"number": np.arange(12)})
    assert remote.numbers().get(GENEROUS) == list(range(2, 12))


def test_replay_buffers_can_be_sent_to_workers(rr: Runner) -> None:
    buffer = ReplayBuffer(storage=ObjectStorage(rr, 10), batch_size=4)
    services = [rr.service(Holder(buffer)) for _ in range(2)]
    rr.get([service.extend([number, number + 10]) for number, service in enumerate(services)])
    assert len(buffer) == 4
    assert rr.get([service.numbers() for service in services]) == [[0, 1, 10, 11]] * 2
    assert set(services[0].sample(4).get(GENEROUS)) <= {0, 1, 10, 11}


def test_many_processes_append_and_read(rr: Runner) -> None:
    storage = ObjectStorage(rr, 300)
    readers = [rr.service(Holder(storage)) for _ in range(2)]
    append = rr.service(append_many, workers=2)
    futures, sizes = [append([storage.appender()], 1000 * worker, 200) for worker in range(3)], []
    while len(rr.wait(futures, timeout=0)[1]):
        sizes += rr.get([reader.size() for reader in readers])
    total = sum(rr.get(futures))
    assert total == 3 * sum(1 + n % 3 for n in range(200))
    assert all(0 <= size <= 300 for size in sizes)
    read = rr.get([reader.numbers() for reader in readers])
    assert read[0] == read[1] == sorted(storage[:]["number"].tolist())
    assert len(read[0]) == 300
    # The newest rows of each writer are kept, without gaps and without duplicates.
    for worker in range(3):
        kept = [number - 1000 * worker for number in read[0] if number // 1000 == worker]
        if kept:
            assert kept == [n for n in range(200) for _ in range(1 + n % 3)][-len(kept) :]


def test_a_reference_to_something_else_is_rejected() -> None:
    with Runner("bad", engine="inline") as rr:
        with pytest.raises(ConfigError, match="is not a storage"):
            ObjectStorage(rr.put_object([1]))
        with pytest.raises(ConfigError, match="max_size=7"):
            ObjectStorage(ObjectStorage(rr, 8).ref, 7)
        assert ObjectStorage(ObjectStorage(rr, 8).ref, 8).max_size == 8


def test_new_patches_are_sorted_by_their_order() -> None:
    with Runner("order", engine="inline") as rr:
        storage = ObjectStorage(rr, 10)
        appender = storage.appender()
        for turn in (2, 0, 3, 1):
            appender.append({"number": np.array([turn, turn])}, order=turn)
        assert storage[:]["number"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        appender.append({"number": np.array([9])}, order=-1)
        assert storage[:]["number"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 9], "rows that were read keep their index"


def test_reading_writes_only_new_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    num_written: list[int] = []
    with Runner("new", engine="inline") as rr:
        storage = ObjectStorage(rr, 1000)
        write = storage._write_batches
        monkeypatch.setattr(
            storage, "_write_batches", lambda batches: (num_written.append(len(batches)), write(batches))
        )
        for number in range(50):
            storage.append(rows(number, number + 1))
            if number % 5 == 4:
                assert len(storage) == 2 * number + 2
                assert len(storage) == 2 * number + 2
    assert num_written == [5] * 10


def test_rows_have_the_same_indices_as_in_a_local_storage() -> None:
    """Even if all rows of a reader are replaced at once, it continues at its next index."""
    with Runner("places", engine="inline") as rr:
        storage, local, number = ObjectStorage(rr, 80), LocalStorage(80), 0
        for size in (80, 40, 40, 80, 40, 80, 80):
            batch = rows(*range(number, number := number + size))
            storage.appender().append(batch)
            local.append(batch)
            assert numbers(storage[:]) == numbers(local[:])


def test_a_storage_that_is_not_live_reads_only_on_refresh(rr: Runner) -> None:
    storage = ObjectStorage(rr, 10, live=False)
    reader = rr.service(Holder(storage))
    storage.append({"number": np.arange(4)})
    assert len(storage) == reader.size().get(GENEROUS) == 0
    reader.refresh().get(GENEROUS)
    assert reader.numbers().get(GENEROUS) == [0, 1, 2, 3]
    storage.append({"number": np.arange(4, 6)})
    assert reader.numbers().get(GENEROUS) == [0, 1, 2, 3]
    assert len(storage) == 0
    assert storage.state_dict()["rows"]["number",].tolist() == [0, 1, 2, 3, 4, 5], "a state dict has all rows"
    storage.append({"number": np.arange(6, 7)})
    storage.refresh()
    assert storage[:]["number"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    LocalStorage(3).refresh()


def test_a_reader_that_missed_rows_has_the_newest(rr: Runner) -> None:
    storage = ObjectStorage(rr, 10)
    reader = rr.service(Holder(storage))
    appender = storage.appender()
    appender.append({"number": np.arange(4)})
    assert reader.numbers().get(GENEROUS) == [0, 1, 2, 3]
    for number in range(4, 100, 3):
        appender.append({"number": np.arange(number, number + 3)})
    assert reader.numbers().get(GENEROUS) == list(range(90, 100))


def test_memory_does_not_grow_with_the_number_of_appends() -> None:
    with Runner("many", engine="inline") as rr:
        storage = ObjectStorage(rr, 500)
        appender, stored = storage.appender(), rr._backend.objects.stored[storage.ref.id]
        pointer = None
        for number in range(100_000):
            appender.append({"number": np.array([number])})
            if number % 331 == 0:
                assert len(storage) == min(number + 1, 500)
                pointer = pointer or storage[:]["number"].data_ptr()
        assert sorted(storage[:]["number"].tolist()) == list(range(99_500, 100_000))
        assert storage[:]["number"].data_ptr() == pointer, "the tensors are allocated once"
        assert len(stored.patches) == len(stored.sizes) == 500
        assert len(rr._backend.table.cache[storage.ref.id].patches) == 500
        rr.put_object(0)
        gc.collect()
        assert len(rr._backend.engine._stored) < 510
