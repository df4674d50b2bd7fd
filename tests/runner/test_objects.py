"""Objects that processes of a run read, replace and append to."""

import gc
from typing import Any

import numpy as np
import pytest

from raceway.errors import ConfigError
from raceway.runner import ObjectRef, Runner, get_object, patch_object, update_object
from tests.conftest import GENEROUS, eventually
from tests.runner.conftest import engines
from tests.runner.services import Reader, add, concatenate


def test_objects_are_read_replaced_and_appended_to(rr: Runner) -> None:
    ref = rr.put_object([1])
    assert rr.get_object(ref) == [1]
    assert rr.get(ref) == [1]
    assert rr.patch_object(ref, 2) == ref
    rr.patch_object(ref, 3)
    assert rr.get_object(ref, concatenate) == [1, 2, 3]
    rr.update_object(ref, [9])
    assert rr.get_object(ref) == [9]
    assert rr.get_object(ref, concatenate) == [9]


def test_a_reference_names_an_object_not_a_snapshot(rr: Runner) -> None:
    ref = rr.put_object(1)
    service = rr.service(add)
    assert rr.get(service(ref)) == 2
    rr.update_object(ref, 10)
    assert rr.get(service(ref)) == 11


def test_a_patched_object_needs_a_deserializer(rr: Runner) -> None:
    ref = rr.put_object([1])
    rr.patch_object(ref, 2)
    with pytest.raises(ConfigError, match=r"1 patches.*deserializer"):
        rr.get_object(ref)
    with pytest.raises(ConfigError, match="inside a container"):
        rr.service(add)(ref)


def test_any_process_of_the_run_reads_and_writes_objects(rr: Runner) -> None:
    ref = rr.put_object(["base"])
    holder = {"ref": ref}
    readers = [rr.service(Reader()) for _ in range(2)]
    assert readers[0].read_plain(holder).get(GENEROUS) == ["base"]
    readers[0].append(holder, "a").get(GENEROUS)
    readers[1].append(holder, "b").get(GENEROUS)
    assert rr.get([reader.read(holder) for reader in readers]) == [["base", "a", "b"]] * 2
    assert rr.get_object(ref, concatenate) == ["base", "a", "b"]
    readers[1].replace(holder, ["new"]).get(GENEROUS)
    assert rr.get([reader.read(holder) for reader in readers]) == [["new"]] * 2


def test_a_worker_creates_objects(rr: Runner) -> None:
    ref = rr.get(rr.service(lambda: [rr.put_object(np.ones(100_000))])())[0]
    assert isinstance(ref, ObjectRef)
    assert rr.get_object(ref).sum() == 100_000
    update_object(ref, [1])
    patch_object(ref, 2)
    assert get_object(ref, concatenate) == [1, 2]


def test_reading_transfers_only_what_is_new(rr: Runner) -> None:
    ref = rr.put_object([np.zeros(1_000_000)])
    reader = rr.service(Reader())
    for number in range(5):
        rr.patch_object(ref, number)
        assert rr.get(reader.read({"ref": ref}))[1:] == list(range(number + 1))
    assert rr.get(reader.same_base()), "the base was read once"


@engines("process")
def test_a_freed_object_is_forgotten_by_its_readers(rr: Runner) -> None:
    reader = rr.service(Reader())
    engine = rr._backend.engine
    rr.get(reader.same_base())
    before = int(engine._control.bytes_used.sum())
    for number in range(20):
        ref = rr.put_object([np.full(1_000_000, number)])
        rr.patch_object(ref, 1)
        rr.get(reader.read({"ref": ref}))
    assert int(engine._control.bytes_used.sum()) - before < 100_000_000, "few objects of 8 MB are alive at once"


def test_compaction_removes_patches(rr: Runner) -> None:
    ref = rr.put_object([])
    for number in range(3000):
        rr.patch_object(ref, number)
        if number % 1000 == 999:
            rr.compact_object(ref, concatenate)
    assert rr.get_object(ref) == list(range(3000)), "no patches are left"
    rr.get(rr.service(lambda box: (box["rr"].compact_object(box["ref"], concatenate), 0)[1])({"ref": ref, "rr": rr}))
    rr.patch_object(ref, "last")
    assert rr.get_object(ref, lambda base, patches: (len(base), patches)) == (3000, ["last"])


def test_a_bounded_object_keeps_its_newest_patches(rr: Runner) -> None:
    ref = rr.put_object(["base"], max_size=3)
    for number in range(10):
        rr.patch_object(ref, number)
        assert rr.get_object(ref, concatenate) == ["base", *range(max(number - 2, 0), number + 1)]


def test_patches_of_a_bounded_object_have_sizes(rr: Runner) -> None:
    ref = rr.put_object([], max_size=5)
    kept = []
    for name, size in (("a", 2), ("b", 2), ("c", 2), ("d", 1), ("e", 9), ("f", 0), ("g", 4), ("h", 1)):
        rr.patch_object(ref, name, size)
        kept.append("".join(rr.get_object(ref, concatenate)))
    # The fewest of the last patches whose sizes sum to at least 5, or all while they sum to less.
    assert kept == ["a", "ab", "abc", "bcd", "e", "ef", "efg", "gh"]


def test_a_reader_that_missed_patches_continues_with_the_rest(rr: Runner) -> None:
    ref = rr.put_object(["base"], max_size=3)
    holder, reader = {"ref": ref}, rr.service(Reader())
    rr.patch_object(ref, 0)
    assert rr.get(reader.read(holder)) == ["base", 0]
    for number in range(1, 8):
        rr.patch_object(ref, number)
    assert rr.get(reader.read(holder)) == ["base", 5, 6, 7]
    rr.patch_object(ref, 8)
    assert rr.get(reader.read(holder)) == ["base", 6, 7, 8]
    assert rr.get(reader.same_base()), "the base was read once"
    assert rr.get(rr.service(Reader()).read(holder)) == ["base", 6, 7, 8], "a first read"


def test_a_bounded_object_is_replaced_and_compacted(rr: Runner) -> None:
    ref = rr.put_object(["base"], max_size=2)
    for number in range(5):
        rr.patch_object(ref, number)
    rr.compact_object(ref, concatenate)
    assert rr.get_object(ref) == ["base", 3, 4]
    for number in range(5, 8):
        rr.patch_object(ref, number)
    assert rr.get_object(ref, concatenate) == ["base", 3, 4, 6, 7], "patches that were folded into the base are kept"
    rr.update_object(ref, ["new"])
    assert rr.get_object(ref) == ["new"]
    for number in range(3):
        rr.patch_object(ref, number)
    assert rr.get_object(ref, concatenate) == ["new", 1, 2], "the bound still applies"


def test_bounded_objects_in_workers(rr: Runner) -> None:
    ref = rr.get(rr.service(lambda: [rr.put_object([], max_size=4)])())[0]
    append = rr.service(lambda box, value, size: patch_object(box["ref"], value, size) and 0)
    for number in range(6):
        rr.get(append({"ref": ref}, number, 2))
    assert rr.get_object(ref, concatenate) == [4, 5]
    assert rr.get(rr.service(Reader()).read({"ref": ref})) == [4, 5]


def test_dropped_patches_are_freed(rr: Runner) -> None:
    ref = rr.put_object([], max_size=10)
    holder, reader = {"ref": ref}, rr.service(Reader())
    for number in range(200):
        rr.patch_object(ref, np.full(10_000, number))
        if number % 7 == 0:
            rr.get(reader.read(holder))
    assert [int(array[0]) for array in rr.get(reader.read(holder))] == list(range(190, 200))

    def few_are_stored() -> bool:
        rr.get(reader.same_base())
        rr.put_object(0)
        return len(rr._backend.engine._stored) < 20

    assert eventually(few_are_stored), f"{len(rr._backend.engine._stored)} values are stored"


@pytest.mark.parametrize("size", [-1, float("nan"), float("inf"), "large"])
def test_invalid_patch_sizes_are_rejected(rr: Runner, size: Any) -> None:
    ref = rr.put_object([], max_size=3)
    with pytest.raises(ConfigError, match=f"must be a number from 0, not {size!r}"):
        rr.patch_object(ref, 1, size=size)
    with pytest.raises(ConfigError, match="must be a number from 0"):
        rr.get(rr.service(lambda refs: patch_object(refs[0], 1, size=size) and None)([ref]))
    assert rr.get_object(ref, lambda base, patches: len(patches)) == 0


@pytest.mark.parametrize("max_size", [0, -1, float("nan"), "large"])
def test_invalid_max_sizes_are_rejected(max_size: Any) -> None:
    with Runner("bad", engine="inline") as rr, pytest.raises(ConfigError, match="max_size must be a number above 0"):
        rr.put_object([], max_size=max_size)


def test_an_object_without_references_is_freed(rr: Runner) -> None:
    service = rr.service(Reader())
    ref = rr.put_object(np.ones(100_000))
    service.read_plain({"ref": ref}).get(GENEROUS)
    stored = rr._backend.objects.stored
    assert len(stored) == 1
    del ref
    gc.collect()

    def is_freed() -> bool:
        rr.get(service.same_base())
        rr.put_object(0)
        gc.collect()
        return len(stored) <= 1

    assert eventually(is_freed)


def test_many_objects_are_freed(rr: Runner) -> None:
    num_objects = 1000 if rr._backend.engine.name == "ray" else 20_000
    for value in range(num_objects):
        rr.put_object(value)
    rr.put_object(0)
    assert len(rr._backend.objects.stored) <= 2
    assert len(rr._backend.engine._stored) <= 4
