"""Results of actors on the driver's machine: through shared memory where that can be, else through Ray's store."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from raceway.engine.ray.engine import RayActor, RayEngine
from raceway.engine.ray.node_memory import Lane, Nearby, neighbour_of
from tests.conftest import GENEROUS, eventually

NUMBERS = np.arange(100_000, dtype=np.int64)


class Giver:
    """Gives large arrays away, and takes them."""

    def give(self, first: int) -> dict[str, np.ndarray]:
        return {"numbers": NUMBERS + first, "few": np.arange(3), "bytes": np.full(50_000, first % 256, np.uint8)}

    def leave(self) -> None:
        os._exit(3)

    def total(self, *arrays: np.ndarray) -> int:
        return sum(int(array.sum()) for array in arrays)

    def hold(self, array: np.ndarray) -> None:
        self.held = array

    def total_held(self) -> int:
        return int(self.held.sum())


@pytest.fixture
def engine(ray_session: None) -> Iterator[RayEngine]:
    with RayEngine() as made:
        yield made


def near(engine: RayEngine) -> RayActor:
    """Start an actor, and wait until it shares memory with the driver."""
    actor = engine.spawn(Giver)
    assert isinstance(actor, RayActor)
    assert eventually(lambda: actor.lane is not None and actor.lane.accepted)
    return actor


def used(engine: RayEngine) -> int:
    return int(engine._nearby._control.used.sum())


def stored(engine: RayEngine) -> int:
    return int(engine._nearby._control.used[0])


def memory_files() -> int:
    """Return how many nameless files of shared memory are open here."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:raceway")
    return found


def check(given: dict[str, np.ndarray], first: int) -> None:
    np.testing.assert_array_equal(given["numbers"], NUMBERS + first)
    np.testing.assert_array_equal(given["few"], np.arange(3))
    assert (given["bytes"] == first % 256).all()


def test_results_lie_in_shared_memory_and_it_is_used_again(engine: RayEngine) -> None:
    actor = near(engine)
    check(actor.call("give", 1).result(GENEROUS), 1)
    taken = used(engine)
    assert taken >= NUMBERS.nbytes
    for first in range(50):
        check(actor.call("give", first).result(GENEROUS), first)
    assert used(engine) <= 4 * taken


def test_what_is_held_is_not_overwritten(engine: RayEngine) -> None:
    actor = near(engine)
    held = [actor.call("give", first).result(GENEROUS) for first in range(20)]
    assert used(engine) >= 20 * NUMBERS.nbytes
    parts = [one["numbers"][7:9] for one in held]
    for first, one in enumerate(held):
        check(one, first)
    del held, one
    for first in range(20, 40):
        check(actor.call("give", first).result(GENEROUS), first)
    assert [part[0] for part in parts] == [7 + first for first in range(20)]


def test_results_outlive_the_actor_and_the_engine(ray_session: None) -> None:
    with RayEngine() as engine:
        actor = near(engine)
        before = actor.call("give", 1).result(GENEROUS)
        assert used(engine) > 0
        assert actor.call("leave").exception(GENEROUS) is not None
        check(before, 1)
        engine.restart(actor).result(GENEROUS)
        assert eventually(lambda: actor.lane is not None and actor.lane.accepted)
        after = actor.call("give", 2).result(GENEROUS)
        check(before, 1)
    check(before, 1)
    check(after, 2)


def test_what_dead_actors_had_is_taken_back(engine: RayEngine) -> None:
    nearby = engine._nearby
    places, files = len(nearby._places), memory_files()
    for _ in range(3):
        actor = near(engine)
        actor.call("give", 1).result(GENEROUS)
        assert used(engine) > 0
        actor.call("hold", engine.put(NUMBERS)).result(GENEROUS)
        engine.kill(actor)
        assert eventually(lambda: len(nearby._places) == places)
    assert int(nearby._control.used[1:].sum()) == 0
    assert not nearby._lanes
    engine.put(1)  # when values that nobody refers to are let go of
    assert not any(slot.in_use() for busy in nearby._arena._busy.values() for slot in busy)
    assert memory_files() <= files + 1  # what the driver stored is mapped since


def test_results_go_through_ray_where_memory_cannot_be_shared(engine: RayEngine) -> None:
    nearby = engine._nearby
    nearby._budget = 1 << 20  # one of them fits
    actor = near(engine)
    held = [actor.call("give", first).result(GENEROUS) for first in range(4)]
    assert 0 < used(engine) <= 1 << 20
    for first, one in enumerate(held):
        check(one, first)
    nearby._places.clear()
    far = engine.spawn(Giver)
    taken = used(engine)
    check(far.call("give", 5).result(GENEROUS), 5)
    assert used(engine) == taken


def test_results_that_nobody_reads_give_their_memory_back(engine: RayEngine) -> None:
    actor = near(engine)
    for _ in range(10):
        futures = [actor.call("give", first) for first in range(4)]
        del futures
        check(actor.call("give", 9).result(GENEROUS), 9)
    assert 0 < used(engine) <= 10 * NUMBERS.nbytes


def test_results_in_flight_when_an_actor_is_killed(engine: RayEngine) -> None:
    actor = near(engine)
    for _ in range(3):
        futures = [actor.call("give", first) for first in range(8)]
        check(futures[0].result(GENEROUS), 0)
        engine.kill(actor)
        for first, future in enumerate(futures):
            if future.exception(GENEROUS) is None:
                check(future.result(), first)
        engine.restart(actor).result(GENEROUS)


def test_stored_values_lie_in_shared_memory_and_it_is_used_again(engine: RayEngine) -> None:
    actors = [near(engine), near(engine)]
    ref = engine.put(NUMBERS)
    taken = stored(engine)
    assert taken >= NUMBERS.nbytes
    assert [actor.call("total", ref, ref).result(GENEROUS) for actor in actors] == 2 * [2 * NUMBERS.sum()]
    np.testing.assert_array_equal(engine.get(ref), NUMBERS)
    for actor in actors:
        actor.call("hold", ref).result(GENEROUS)
    del ref
    for first in range(20):
        ref = engine.put(NUMBERS + first)
        assert actors[first % 2].call("total", ref).result(GENEROUS) == NUMBERS.sum() + first * len(NUMBERS)
    assert stored(engine) <= 4 * taken
    assert [actor.call("total_held").result(GENEROUS) for actor in actors] == 2 * [NUMBERS.sum()]


def test_stored_values_reach_actors_that_share_nothing(engine: RayEngine) -> None:
    near(engine)
    ref = engine.put(NUMBERS)
    assert stored(engine) >= NUMBERS.nbytes
    engine._nearby._places.clear()
    assert engine.spawn(Giver).call("total", ref).result(GENEROUS) == NUMBERS.sum()


@pytest.fixture
def lane() -> Iterator[Lane]:
    nearby = Nearby()
    made = nearby.open()
    assert made is not None
    yield made
    nearby.end()


def test_an_actor_knows_the_right_files(lane: Lane) -> None:
    path, device, inode = lane.offer.arena
    neighbour = neighbour_of(lane.offer)
    assert neighbour is not None
    assert [bytes(part) for part in lane.read(neighbour.lend([b"one", b"other"]))] == [b"one", b"other"]
    neighbour.close()
    for wrong in ((path, device, inode + 1), (path, device + 1, inode), ("/proc/0/fd/3", device, inode)):
        assert neighbour_of(dataclasses.replace(lane.offer, arena=wrong)) is None
        assert neighbour_of(dataclasses.replace(lane.offer, control=wrong)) is None


def test_what_a_child_lets_go_of_its_parent_still_has(lane: Lane) -> None:
    neighbour = neighbour_of(lane.offer)
    assert neighbour is not None
    buffers = lane.read(neighbour.lend([b"one" * 30_000]))
    releases = lane.view._releases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python does not like forks where there are threads
        child = os.fork()
    if child == 0:
        del buffers
        os._exit(0)
    os.waitpid(child, 0)
    assert not releases.any()
    del buffers
    assert releases.any()
    neighbour.close()


def test_another_process_opens_them(lane: Lane) -> None:
    program = f"""
from raceway.engine.ray.node_memory import Offer, neighbour_of
print(*neighbour_of({lane.offer!r}).lend([b"from there"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=GENEROUS)
    assert [bytes(part) for part in lane.read(tuple(map(int, done.stdout.split())))] == [b"from there"]
