"""Coefficients of directions and their noise, worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.rl import ars_coefficients, centred_ranks, direction_noise, es_coefficients, sum_of_directions

RETURNS = np.array([[4.0, 1.0], [4.0, 7.0], [1.0, 1.0]])
"""Of three directions: 1, 1 and 1 share the ranks 0 to 2, 4 and 4 the ranks 3 and 4, and 7 has rank 5."""


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    # Ranks 3.5, 1; 3.5, 5; 1, 1 of 0 to 5: divided by 5, minus a half.
    expected = [[0.2, -0.3], [0.2, 0.5], [-0.3, -0.3]]
    np.testing.assert_allclose(centred_ranks(RETURNS), expected, atol=1e-15)
    assert centred_ranks(np.full((2, 2), 3.0)).tolist() == [[0, 0], [0, 0]]
    assert centred_ranks(np.array([5.0])).tolist() == [0]


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=12), st.randoms())
def test_ranks_do_not_depend_on_the_order(values: list[int], random: object) -> None:
    ranks = centred_ranks(np.array(values, float))
    order = list(range(len(values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(centred_ranks(np.array(values, float)[order]), ranks[order])
    assert ranks.sum() == pytest.approx(0)
    assert ranks.max() <= 0.5


def test_coefficients_of_es() -> None:
    # (u⁺ - u⁻) / (2 P σ) with P = 3 and σ = 0.5.
    np.testing.assert_allclose(es_coefficients(RETURNS, sigma=0.5), [0.5 / 3, -0.3 / 3, 0], atol=1e-15)


def test_coefficients_of_ars() -> None:
    # The better returns are 4, 7 and 1. The best two directions have the returns 4, 1, 4, 7: mean 4, variance 18 / 4.
    deviation = math.sqrt(4.5)
    np.testing.assert_allclose(ars_coefficients(RETURNS, 2), [3 / (2 * deviation), -3 / (2 * deviation), 0])
    # With one direction it is the one with 7, whose returns 4 and 7 deviate by 1.5.
    np.testing.assert_allclose(ars_coefficients(RETURNS, 1), [0, -2, 0])
    # With all, the deviation is that of all six: mean 3, squares 1, 4, 1, 16, 4, 4.
    np.testing.assert_allclose(ars_coefficients(RETURNS, 3), np.array([3, -3, 0]) / (3 * math.sqrt(5)))


def test_without_any_difference_there_is_no_step() -> None:
    assert ars_coefficients(np.full((3, 2), 9.0), 2).tolist() == [0, 0, 0]


def test_of_equally_good_directions_the_first_counts() -> None:
    assert ars_coefficients(np.array([[0.0, 2.0], [2.0, 0.0]]), 1).tolist() == [-2, 0]


def test_noise_follows_from_the_seed_and_the_number() -> None:
    noise = np.stack([direction_noise(seed, number, 4000) for seed in (0, 1) for number in (0, 1, 2**40)])
    assert noise.dtype == np.float32
    assert np.abs(np.corrcoef(noise) - np.eye(6)).max() < 0.06
    assert np.abs(noise.mean(1)).max() < 0.06
    assert np.abs(noise.std(1) - 1).max() < 0.06
    np.testing.assert_array_equal(direction_noise(1, 2**40, 4000), noise[5])
    # These numbers are part of every result.
    assert direction_noise(3, 5, 3).tolist() == FIRST_OF_3_5


FIRST_OF_3_5 = [1.2475074529647827, 0.1883307844400406, 0.6163597702980042]


def test_the_sum_of_directions() -> None:
    noise = [direction_noise(7, number, 5) for number in (4, 9)]
    np.testing.assert_array_equal(
        sum_of_directions([0.5, 0.0, -2.0], [4, 8, 9], 7, 5), np.float32(0.5) * noise[0] + np.float32(-2) * noise[1]
    )
