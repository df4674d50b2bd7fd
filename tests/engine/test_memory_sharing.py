"""Results and stored values on the driver's node: through shared memory if possible, else through Ray's store."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from raceway.engine.ray.actor import RayActor
from raceway.engine.ray.engine import RayEngine
from raceway.engine.ray.memory_sharing import DriverEnd, NodeMemory, open_actor_end
from tests.conftest import GENEROUS, eventually

NUMBERS = np.arange(100_000, dtype=np.int64)


class ArrayActor:
    """Returns and takes large arrays."""

    def arrays(self, first: int) -> dict[str, np.ndarray]:
        return {"numbers": NUMBERS + first, "few": np.arange(3), "bytes": np.full(50_000, first % 256, np.uint8)}

    def exit(self) -> None:
        os._exit(3)

    def total(self, *arrays: np.ndarray) -> int:
        return sum(int(array.sum()) for array in arrays)

    def hold(self, array: np.ndarray) -> None:
        self.held = array

    def total_held(self) -> int:
        return int(self.held.sum())


@pytest.fixture
def engine(ray_session: None) -> Iterator[RayEngine]:
    with RayEngine() as ray_engine:
        yield ray_engine


def spawn_sharing(engine: RayEngine) -> RayActor:
    """Start an actor, and wait until it shares memory with the driver."""
    actor = engine.spawn(ArrayActor)
    assert isinstance(actor, RayActor)
    assert eventually(lambda: actor.memory is not None and actor.memory.accepted)
    return actor


def bytes_used(engine: RayEngine) -> int:
    return int(engine._memory._control.bytes_used.sum())


def bytes_stored(engine: RayEngine) -> int:
    return int(engine._memory._control.bytes_used[0])


def num_memory_files() -> int:
    """Return how many anonymous files of shared memory are open here."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:raceway")
    return count


def check(arrays: dict[str, np.ndarray], first: int) -> None:
    np.testing.assert_array_equal(arrays["numbers"], NUMBERS + first)
    np.testing.assert_array_equal(arrays["few"], np.arange(3))
    assert (arrays["bytes"] == first % 256).all()


def test_results_lie_in_shared_memory_which_is_reused(engine: RayEngine) -> None:
    actor = spawn_sharing(engine)
    check(actor.call("arrays", 1).result(GENEROUS), 1)
    used_by_first = bytes_used(engine)
    assert used_by_first >= NUMBERS.nbytes
    for first in range(50):
        check(actor.call("arrays", first).result(GENEROUS), first)
    assert bytes_used(engine) <= 4 * used_by_first


def test_results_in_use_are_not_overwritten(engine: RayEngine) -> None:
    actor = spawn_sharing(engine)
    results = [actor.call("arrays", first).result(GENEROUS) for first in range(20)]
    assert bytes_used(engine) >= 20 * NUMBERS.nbytes
    parts = [result["numbers"][7:9] for result in results]
    for first, result in enumerate(results):
        check(result, first)
    del results, result
    for first in range(20, 40):
        check(actor.call("arrays", first).result(GENEROUS), first)
    assert [part[0] for part in parts] == [7 + first for first in range(20)]


def test_results_outlive_the_actor_and_the_engine(ray_session: None) -> None:
    with RayEngine() as engine:
        actor = spawn_sharing(engine)
        before = actor.call("arrays", 1).result(GENEROUS)
        assert bytes_used(engine) > 0
        assert actor.call("exit").exception(GENEROUS) is not None
        check(before, 1)
        engine.restart(actor).result(GENEROUS)
        assert eventually(lambda: actor.memory is not None and actor.memory.accepted)
        after = actor.call("arrays", 2).result(GENEROUS)
        check(before, 1)
    check(before, 1)
    check(after, 2)


def test_the_memory_of_dead_actors_is_freed(engine: RayEngine) -> None:
    memory = engine._memory
    num_indices, num_files = len(memory._free_indices), num_memory_files()
    for _ in range(3):
        actor = spawn_sharing(engine)
        actor.call("arrays", 1).result(GENEROUS)
        assert bytes_used(engine) > 0
        actor.call("hold", engine.put(NUMBERS)).result(GENEROUS)
        engine.kill(actor)
        assert eventually(lambda: len(memory._free_indices) == num_indices)
    assert int(memory._control.bytes_used[1:].sum()) == 0
    assert not memory._ends
    engine.put(1)  # frees values without references
    assert not any(block.in_use() for busy in memory._arena._busy.values() for block in busy)
    assert num_memory_files() <= num_files + 1  # the driver's arena has been mapped since


def test_results_go_through_ray_if_memory_cannot_be_shared(engine: RayEngine) -> None:
    memory = engine._memory
    memory._budget = 1 << 20  # room for one result
    actor = spawn_sharing(engine)
    results = [actor.call("arrays", first).result(GENEROUS) for first in range(4)]
    assert 0 < bytes_used(engine) <= 1 << 20
    for first, result in enumerate(results):
        check(result, first)
    memory._free_indices.clear()
    not_sharing = engine.spawn(ArrayActor)
    used_before = bytes_used(engine)
    check(not_sharing.call("arrays", 5).result(GENEROUS), 5)
    assert bytes_used(engine) == used_before


def test_the_memory_of_unread_results_is_freed(engine: RayEngine) -> None:
    actor = spawn_sharing(engine)
    for _ in range(10):
        futures = [actor.call("arrays", first) for first in range(4)]
        del futures
        check(actor.call("arrays", 9).result(GENEROUS), 9)
    assert 0 < bytes_used(engine) <= 10 * NUMBERS.nbytes


def test_killing_an_actor_with_results_in_flight(engine: RayEngine) -> None:
    actor = spawn_sharing(engine)
    for _ in range(3):
        futures = [actor.call("arrays", first) for first in range(8)]
        check(futures[0].result(GENEROUS), 0)
        engine.kill(actor)
        for first, future in enumerate(futures):
            if future.exception(GENEROUS) is None:
                check(future.result(), first)
        engine.restart(actor).result(GENEROUS)


def test_stored_values_lie_in_shared_memory_which_is_reused(engine: RayEngine) -> None:
    actors = [spawn_sharing(engine), spawn_sharing(engine)]
    ref = engine.put(NUMBERS)
    used_by_first = bytes_stored(engine)
    assert used_by_first >= NUMBERS.nbytes
    assert [actor.call("total", ref, ref).result(GENEROUS) for actor in actors] == 2 * [2 * NUMBERS.sum()]
    np.testing.assert_array_equal(engine.get(ref), NUMBERS)
    for actor in actors:
        actor.call("hold", ref).result(GENEROUS)
    del ref
    for first in range(20):
        ref = engine.put(NUMBERS + first)
        assert actors[first % 2].call("total", ref).result(GENEROUS) == NUMBERS.sum() + first * len(NUMBERS)
    assert bytes_stored(engine) <= 4 * used_by_first
    assert [actor.call("total_held").result(GENEROUS) for actor in actors] == 2 * [NUMBERS.sum()]


def test_stored_values_reach_actors_that_share_no_memory(engine: RayEngine) -> None:
    spawn_sharing(engine)
    ref = engine.put(NUMBERS)
    assert bytes_stored(engine) >= NUMBERS.nbytes
    engine._memory._free_indices.clear()
    assert engine.spawn(ArrayActor).call("total", ref).result(GENEROUS) == NUMBERS.sum()


@pytest.fixture
def driver_end() -> Iterator[DriverEnd]:
    memory = NodeMemory()
    end = memory.connect()
    assert end is not None
    yield end
    memory.close()


def test_an_actor_opens_only_the_right_files(driver_end: DriverEnd) -> None:
    offer = driver_end.offer
    path, device, inode = offer.actor_arena
    actor_end = open_actor_end(offer)
    assert actor_end is not None
    assert [bytes(part) for part in driver_end.read(actor_end.write([b"one", b"two"]))] == [b"one", b"two"]
    actor_end.close()
    for wrong in ((path, device, inode + 1), (path, device + 1, inode), ("/proc/0/fd/3", device, inode)):
        assert open_actor_end(dataclasses.replace(offer, actor_arena=wrong)) is None
        assert open_actor_end(dataclasses.replace(offer, control=wrong)) is None


def test_a_forked_child_does_not_release_memory_of_its_parent(driver_end: DriverEnd) -> None:
    actor_end = open_actor_end(driver_end.offer)
    assert actor_end is not None
    buffers = driver_end.read(actor_end.write([b"one" * 30_000]))
    releases = driver_end.reader._releases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks in a process with threads
        child = os.fork()
    if child == 0:
        del buffers
        os._exit(0)
    os.waitpid(child, 0)
    assert not releases.any()
    del buffers
    assert releases.any()
    actor_end.close()


def test_another_process_opens_the_files(driver_end: DriverEnd) -> None:
    program = f"""
from raceway.engine.ray.memory_sharing import SharedMemoryOffer, open_actor_end
print(*open_actor_end({driver_end.offer!r}).write([b"from another process"]))
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=GENEROUS
    )
    location = tuple(map(int, process.stdout.split()))
    assert [bytes(part) for part in driver_end.read(location)] == [b"from another process"]
