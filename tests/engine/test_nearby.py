"""Results of actors on the driver's machine: through shared memory where that can be, else through Ray's store."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from raceway.engine._nearby import Lane, Nearby, neighbour_of
from raceway.engine.ray import RayActor, RayEngine
from tests.conftest import GENEROUS, eventually

NUMBERS = np.arange(100_000, dtype=np.int64)


class Giver:
    """Gives large arrays away."""

    def give(self, first: int) -> dict[str, np.ndarray]:
        return {"numbers": NUMBERS + first, "few": np.arange(3), "bytes": np.full(50_000, first % 256, np.uint8)}

    def leave(self) -> None:
        os._exit(3)


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
    places = len(nearby._places)
    for _ in range(3):
        actor = near(engine)
        actor.call("give", 1).result(GENEROUS)
        engine.kill(actor)
        assert eventually(lambda: len(nearby._places) == places)
    assert used(engine) == 0
    assert not nearby._lanes


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


def test_another_process_opens_them(lane: Lane) -> None:
    program = f"""
from raceway.engine._nearby import Offer, neighbour_of
print(*neighbour_of({lane.offer!r}).lend([b"from there"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=GENEROUS)
    assert [bytes(part) for part in lane.read(tuple(map(int, done.stdout.split())))] == [b"from there"]
