"""Returns of episodes that lie behind one another, against arrays worked out by hand and against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.rl import discounted_returns, episode_sums, standardise_episodes

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=8)


def split(values: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


def drawn(lengths: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=sum(lengths)).astype(np.float32)


def test_discounted_returns_by_hand() -> None:
    rewards = np.array([1, 0, 2, 5, -1, 3], np.float32)
    found = discounted_returns(rewards, np.array([3, 1, 2]), gamma=0.5)
    np.testing.assert_array_equal(found, [1.5, 1, 2, 5, 0.5, 3])
    assert found.dtype == np.float32


@pytest.mark.parametrize(("gamma", "wanted"), [(0.0, [1, 2, 3, 4]), (1.0, [6, 5, 3, 4])])
def test_the_discount_at_its_ends(gamma: float, wanted: list[float]) -> None:
    rewards = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(discounted_returns(rewards, np.array([3, 1]), gamma), wanted)


def test_rewards_are_left_as_they_are() -> None:
    rewards = np.array([1.0, 2.0, 3.0])
    discounted_returns(rewards, np.array([3]), 0.9)
    np.testing.assert_array_equal(rewards, [1, 2, 3])


@given(LENGTHS, st.integers(0, 99), st.floats(0, 1))
def test_discounted_returns_are_those_of_a_loop(lengths: list[int], seed: int, gamma: float) -> None:
    rewards, wanted = drawn(lengths, seed), []
    for episode in split(rewards, lengths):
        following, backwards = 0.0, []
        for reward in episode[::-1].tolist():
            following = reward + gamma * following
            backwards.append(following)
        wanted += backwards[::-1]
    np.testing.assert_allclose(discounted_returns(rewards, np.array(lengths), gamma), wanted, rtol=1e-4, atol=1e-5)


def test_standardised_by_hand() -> None:
    # Mean 4, deviation √((9 + 1 + 4 + 4 + 0 + 0) / 6) of the first episode; the second is all the same.
    values = np.array([1, 3, 6, 6, 4, 4, 7, 7], np.float64)
    found = standardise_episodes(values, np.array([6, 2]), epsilon=0.5)
    wanted = np.array([-3, -1, 2, 2, 0, 0]) / (np.sqrt(3) + 0.5)
    np.testing.assert_allclose(found, [*wanted, 0, 0])


def test_an_episode_of_one_step_is_standardised_to_nothing() -> None:
    found = standardise_episodes(np.array([5, -2], np.float32), np.array([1, 1]))
    np.testing.assert_array_equal(found, [0, 0])
    assert found.dtype == np.float32


@given(LENGTHS, st.integers(0, 99))
def test_standardised_episodes_are_those_of_a_loop(lengths: list[int], seed: int) -> None:
    values = drawn(lengths, seed)
    wanted = [
        (episode - episode.mean(dtype=float)) / (episode.std(dtype=float) + 1e-2) for episode in split(values, lengths)
    ]
    found = standardise_episodes(values, np.array(lengths), epsilon=1e-2)
    np.testing.assert_allclose(found, np.concatenate(wanted), rtol=1e-3, atol=1e-4)


def test_episode_sums_by_hand() -> None:
    found = episode_sums(np.array([1, 2, 4, 8, 16], np.float32), np.array([2, 1, 2]))
    np.testing.assert_array_equal(found, [3, 4, 24])
    assert found.dtype == np.float64


def test_sums_are_of_64_bits_throughout() -> None:
    # In 32 bits, 2²⁴ + 1 is 2²⁴.
    values = np.array([2**24, 1, 1, 1], np.float32)
    assert episode_sums(values, np.array([4])).tolist() == [2**24 + 3]


@given(LENGTHS, st.integers(0, 99))
def test_episode_sums_are_those_of_a_loop(lengths: list[int], seed: int) -> None:
    values = drawn(lengths, seed)
    wanted = [sum(episode.tolist()) for episode in split(values, lengths)]
    np.testing.assert_allclose(episode_sums(values, np.array(lengths)), wanted, atol=1e-12)


def test_no_episodes_at_all() -> None:
    """A shard whose share of an item is none gives such a batch."""
    nothing, none = np.zeros(0, np.float32), np.zeros(0, np.int64)
    for found in (discounted_returns(nothing, none, 0.9), standardise_episodes(nothing, none)):
        assert found.shape == (0,)
        assert found.dtype == np.float32
    assert episode_sums(nothing, none).shape == (0,)
