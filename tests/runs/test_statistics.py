"""Statistics over several runs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.runs.statistics import (
    bootstrap_interval,
    improvement_interval,
    interquartile_mean,
    probability_of_improvement,
)

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([7], 7),
        ([1, 3], 2),
        ([1, 2, 6], (0.25 * 1 + 2 + 0.25 * 6) / 1.5),  # the middle half is 1.5 values long
        ([0, 1, 2, 100], 1.5),
        ([5, 4, 3, 2, 1], (0.75 * 2 + 3 + 0.75 * 4) / 2.5),
        ([-1000, 1, 1, 2, 2, 3, 3, 1000], (1 + 2 + 2 + 3) / 4),
    ],
)
def test_the_interquartile_mean_by_hand(values: list[float], expected: float) -> None:
    assert interquartile_mean(values) == pytest.approx(expected)
    assert interquartile_mean(np.array(values)[::-1]) == pytest.approx(expected)


@given(NUMBERS)
def test_the_interquartile_mean_of_four_copies(values: list[float]) -> None:
    """With four copies of each value, the quartiles fall between values, and a slice is enough."""
    ordered = np.sort(np.repeat(values, 4))
    expected = ordered[len(values) : -len(values)].mean()
    assert interquartile_mean(values) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(NUMBERS, st.integers(0, 9))
def test_the_interval_lies_within_the_values(values: list[float], seed: int) -> None:
    low, high = bootstrap_interval(values, num_samples=20, seed=seed)
    span = 1e-9 * max(1, *map(abs, values))
    assert min(values) - span <= low <= high <= max(values) + span


def test_the_interval_of_a_mean_is_that_of_the_textbook() -> None:
    """For the mean of many values, it is 1.96 standard errors to each side."""
    values = np.random.default_rng(0).normal(10, 2, 400)
    low, high = bootstrap_interval(values, np.mean)
    error = values.std() / 20
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)


def test_a_higher_level_is_wider() -> None:
    values = np.arange(20.0)
    wide, narrow = bootstrap_interval(values, level=0.99), bootstrap_interval(values, level=0.5)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_the_same_seed_gives_the_same_samples() -> None:
    values = np.arange(9.0)
    assert bootstrap_interval(values, seed=1) == bootstrap_interval(values, seed=1)
    assert bootstrap_interval(values, num_samples=50, seed=1) != bootstrap_interval(values, num_samples=50, seed=2)


def test_any_statistic_can_be_passed() -> None:
    assert bootstrap_interval([1.0, 2.0, 3.0], lambda sample: 42.0) == (42.0, 42.0)
    assert bootstrap_interval([1.0, 2.0, 3.0], len, num_samples=3) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ([2], [1], 1.0),
        ([1], [2], 0.0),
        ([1], [1], 0.5),
        ([1, 3], [2], 0.5),
        ([3, 5], [1, 3, 4], (1 + 0.5 + 0 + 3) / 6),
        ([1, 2, 3], [2, 3, 4], (0 + 0.5 + (1 + 0.5)) / 9),  # only 2 ties with 2, 3 beats 2 and ties with 3
        ([-1.5, 0.0], [-2.0, 7.0], 0.5),
    ],
)
def test_the_probability_of_improvement_by_hand(x: list[float], y: list[float], expected: float) -> None:
    assert probability_of_improvement(x, y) == pytest.approx(expected)
    assert probability_of_improvement(np.array(y), x) == pytest.approx(1 - expected)


@given(NUMBERS, NUMBERS, st.integers(0, 9))
def test_the_interval_of_a_probability_is_within_0_and_1(x: list[float], y: list[float], seed: int) -> None:
    low, high = improvement_interval(x, y, num_samples=20, seed=seed)
    assert 0 <= low <= high <= 1
    mirrored = improvement_interval([-value for value in x], [-value for value in y], num_samples=20, seed=seed)
    assert mirrored == pytest.approx((1 - high, 1 - low))  # the same samples, with every win a loss


def test_both_sides_are_resampled() -> None:
    """Against a single value, the interval is that of a binomial proportion: p ± 1.96 √(p (1 - p) / n)."""
    many = np.arange(400.0)
    expected = 0.25 - 1.96 * np.sqrt(0.25 * 0.75 / 400), 0.25 + 1.96 * np.sqrt(0.25 * 0.75 / 400)
    assert improvement_interval(many, [299.5]) == pytest.approx(expected, abs=0.005)
    low, high = improvement_interval([299.5], many)
    assert (low, high) == pytest.approx((1 - expected[1], 1 - expected[0]), abs=0.005)


def test_the_interval_of_a_probability_by_counting() -> None:
    """Each of two values is sampled twice in a quarter of the resamples; the two levels lie on either side of that."""
    assert improvement_interval([1, 3], [2, 2], level=0.4) == (0.5, 0.5)
    assert improvement_interval([1, 3], [2, 2], level=0.6) == (0.0, 1.0)
