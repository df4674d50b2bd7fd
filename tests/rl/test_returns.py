"""Returns of concatenated episodes, against arrays computed by hand and against plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.rl import discounted_returns, episode_sums, standardise_episodes

LENGTHS = st.lists(st.integers(1, 12), min_size=1, max_size=8)


def split(values: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    return np.split(values, np.cumsum(lengths)[:-1])


def random_values(lengths: list[int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=sum(lengths)).astype(np.float32)


def test_discounted_returns_by_hand() -> None:
    rewards = np.array([1, 0, 2, 5, -1, 3], np.float32)
    actual = discounted_returns(rewards, np.array([3, 1, 2]), gamma=0.5)
    np.testing.assert_array_equal(actual, [1.5, 1, 2, 5, 0.5, 3])
    assert actual.dtype == np.float32


@pytest.mark.parametrize(("gamma", "expected"), [(0.0, [1, 2, 3, 4]), (1.0, [6, 5, 3, 4])])
def test_discounts_of_zero_and_one(gamma: float, expected: list[float]) -> None:
    rewards = np.array([1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(discounted_returns(rewards, np.array([3, 1]), gamma), expected)


def test_rewards_are_not_changed() -> None:
    rewards = np.array([1.0, 2.0, 3.0])
    discounted_returns(rewards, np.array([3]), 0.9)
    np.testing.assert_array_equal(rewards, [1, 2, 3])


@given(LENGTHS, st.integers(0, 99), st.floats(0, 1))
def test_discounted_returns_equal_those_of_a_loop(lengths: list[int], seed: int, gamma: float) -> None:
    rewards, expected = random_values(lengths, seed), []
    for episode in split(rewards, lengths):
        discounted, backwards = 0.0, []
        for reward in episode[::-1].tolist():
            discounted = reward + gamma * discounted
            backwards.append(discounted)
        expected += backwards[::-1]
    np.testing.assert_allclose(discounted_returns(rewards, np.array(lengths), gamma), expected, rtol=1e-4, atol=1e-5)


def test_standardised_by_hand() -> None:
    # Mean 4, deviation √((9 + 1 + 4 + 4 + 0 + 0) / 6) of the first episode; the values of the second are all equal.
    values = np.array([1, 3, 6, 6, 4, 4, 7, 7], np.float64)
    actual = standardise_episodes(values, np.array([6, 2]), epsilon=0.5)
    expected = np.array([-3, -1, 2, 2, 0, 0]) / (np.sqrt(3) + 0.5)
    np.testing.assert_allclose(actual, [*expected, 0, 0])


def test_an_episode_of_one_step_is_standardised_to_zero() -> None:
    actual = standardise_episodes(np.array([5, -2], np.float32), np.array([1, 1]))
    np.testing.assert_array_equal(actual, [0, 0])
    assert actual.dtype == np.float32


@given(LENGTHS, st.integers(0, 99))
def test_standardised_episodes_equal_those_of_a_loop(lengths: list[int], seed: int) -> None:
    values = random_values(lengths, seed)
    expected = [
        (episode - episode.mean(dtype=float)) / (episode.std(dtype=float) + 1e-2) for episode in split(values, lengths)
    ]
    actual = standardise_episodes(values, np.array(lengths), epsilon=1e-2)
    np.testing.assert_allclose(actual, np.concatenate(expected), rtol=1e-3, atol=1e-4)


def test_episode_sums_by_hand() -> None:
    actual = episode_sums(np.array([1, 2, 4, 8, 16], np.float32), np.array([2, 1, 2]))
    np.testing.assert_array_equal(actual, [3, 4, 24])
    assert actual.dtype == np.float64


def test_sums_use_64_bits() -> None:
    # In 32 bits, 2²⁴ + 1 is 2²⁴.
    values = np.array([2**24, 1, 1, 1], np.float32)
    assert episode_sums(values, np.array([4])).tolist() == [2**24 + 3]


@given(LENGTHS, st.integers(0, 99))
def test_episode_sums_equal_those_of_a_loop(lengths: list[int], seed: int) -> None:
    values = random_values(lengths, seed)
    expected = [sum(episode.tolist()) for episode in split(values, lengths)]
    np.testing.assert_allclose(episode_sums(values, np.array(lengths)), expected, atol=1e-12)


def test_no_episodes_at_all() -> None:
    """A shard with no episodes to collect returns such a batch."""
    no_values, no_lengths = np.zeros(0, np.float32), np.zeros(0, np.int64)
    for actual in (discounted_returns(no_values, no_lengths, 0.9), standardise_episodes(no_values, no_lengths)):
        assert actual.shape == (0,)
        assert actual.dtype == np.float32
    assert episode_sums(no_values, no_lengths).shape == (0,)
