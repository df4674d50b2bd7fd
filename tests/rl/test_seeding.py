"""Seeds, derived from their purpose."""

import itertools
import random
import threading

import numpy as np
import pytest
import torch

from raceway.rl.seeding import (
    GLOBAL_GENERATORS_LOCK,
    Purpose,
    derive_seed,
    episode_seed,
    seeded_globally,
    seeded_globally_shared,
)
from tests.conftest import GENEROUS


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ((0, Purpose.ENVIRONMENT), 1878776328),
        ((0, Purpose.ENVIRONMENT, 1, 2, 3), 1327122614),
        ((7, Purpose.ACTIONS, 0, 12), 483654261),
        ((7, Purpose.EVALUATION, 5), 728078377),
        ((2**40, Purpose.LEARNER, 1), 782689496),
    ],
)
def test_seeds_never_change(path: tuple[int, ...], expected: int) -> None:
    """Published results depend on these numbers."""
    seed, purpose, *rest = path
    assert derive_seed(seed, Purpose(purpose), *rest) == expected


def test_purposes_never_change() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "ENVIRONMENT": 0,
        "ACTIONS": 1,
        "WEIGHTS": 2,
        "LEARNER": 3,
        "EVALUATION": 4,
        "TASKS": 5,
        "DATASET": 6,
        "PERTURBATIONS": 7,
    }


def test_seeds_differ() -> None:
    numbers = range(6)
    seeds = [
        derive_seed(seed, purpose, *path)
        for seed in numbers
        for purpose in Purpose
        for path in itertools.product(numbers, numbers)
    ]
    seeds += [derive_seed(seed, purpose, number) for seed in numbers for purpose in Purpose for number in numbers]
    assert len(set(seeds)) == len(seeds)


def test_seeds_have_31_bits() -> None:
    seeds = [derive_seed(seed, Purpose.ENVIRONMENT, 0) for seed in range(500)]
    assert 0 <= min(seeds) < 2**24
    assert 2**30 < max(seeds) < 2**31


def test_the_order_of_a_path_matters() -> None:
    assert derive_seed(0, Purpose.ACTIONS, 1, 2) != derive_seed(0, Purpose.ACTIONS, 2, 1)
    assert derive_seed(0, Purpose.ACTIONS, 0) != derive_seed(0, Purpose.ACTIONS)


def test_every_episode_has_its_own_seed() -> None:
    seeds = [episode_seed(*path) for path in itertools.product(range(2), range(3), range(3), range(0, 200))]
    assert len(set(seeds)) == len(seeds)
    assert episode_seed(0, 0, 0, 0) == 2118539918
    assert all(0 <= seed < 2**31 for seed in seeds)


def numbers() -> tuple[float, ...]:
    return random.random(), float(np.random.random()), float(torch.rand(()))


def test_the_global_generators_are_seeded_and_restored() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = numbers()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    with seeded_globally(0):
        first = numbers()
    with seeded_globally(0):
        assert numbers() == first
    assert numbers() == expected


def test_only_one_thread_at_a_time_seeds_the_global_generators() -> None:
    acquired: list[bool] = []
    with seeded_globally(0), seeded_globally(1):
        thread = threading.Thread(target=lambda: acquired.append(GLOBAL_GENERATORS_LOCK.acquire(blocking=False)))
        thread.start()
        thread.join()
    assert acquired == [False]


def test_seedings_that_overlap_leave_the_global_generators_as_they_were() -> None:
    first_entered, second_entered, first_left = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with seeded_globally_shared(1):
            first_entered.set()
            second_entered.wait(GENEROUS)
        first_left.set()

    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    expected = numbers()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    thread = threading.Thread(target=first)
    thread.start()
    first_entered.wait(GENEROUS)
    with seeded_globally_shared(2):
        with seeded_globally(3):
            inner = numbers()
        second_entered.set()
        first_left.wait(GENEROUS)
        with seeded_globally(3):
            assert numbers() == inner
    thread.join(GENEROUS)
    assert numbers() == expected


def test_seeds_may_have_more_than_32_bits() -> None:
    with seeded_globally(2**32):
        first = numbers()
    with seeded_globally(2**32):
        assert numbers() == first
