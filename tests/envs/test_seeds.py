"""Seeds: found by what they are for."""

import itertools

import pytest

from raceway.envs import Purpose, seed_of, seed_of_episode


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ((0, Purpose.ENVIRONMENT), 1878776328),
        ((0, Purpose.ENVIRONMENT, 1, 2, 3), 1327122614),
        ((7, Purpose.ACTIONS, 0, 12), 483654261),
        ((7, Purpose.EVALUATION, 5), 728078377),
        ((2**40, Purpose.LEARNER, 1), 782689496),
    ],
)
def test_seeds_never_change(path: tuple[int, ...], wanted: int) -> None:
    """Whoever gave a seed has results that hang on these numbers."""
    seed, purpose, *rest = path
    assert seed_of(seed, Purpose(purpose), *rest) == wanted


def test_purposes_never_change() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "ENVIRONMENT": 0,
        "ACTIONS": 1,
        "WEIGHTS": 2,
        "LEARNER": 3,
        "EVALUATION": 4,
        "TASKS": 5,
    }


def test_seeds_differ() -> None:
    few = range(6)
    found = [
        seed_of(seed, purpose, *path) for seed in few for purpose in Purpose for path in itertools.product(few, few)
    ]
    found += [seed_of(seed, purpose, one) for seed in few for purpose in Purpose for one in few]
    assert len(set(found)) == len(found)


def test_they_have_31_bits() -> None:
    found = [seed_of(seed, Purpose.ENVIRONMENT, 0) for seed in range(500)]
    assert 0 <= min(found) < 2**24
    assert 2**30 < max(found) < 2**31


def test_the_order_of_a_path_matters() -> None:
    assert seed_of(0, Purpose.ACTIONS, 1, 2) != seed_of(0, Purpose.ACTIONS, 2, 1)
    assert seed_of(0, Purpose.ACTIONS, 0) != seed_of(0, Purpose.ACTIONS)


def test_every_episode_has_a_seed_of_its_own() -> None:
    found = [seed_of_episode(*path) for path in itertools.product(range(2), range(3), range(3), range(0, 200))]
    assert len(set(found)) == len(found)
    assert seed_of_episode(0, 0, 0, 0) == 2118539918
    assert all(0 <= seed < 2**31 for seed in found)
