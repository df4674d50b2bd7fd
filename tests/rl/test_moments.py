"""Sums over several processes, by which each standardises its own rows."""

import numpy as np
import pytest

from raceway.rl import Moments


def test_rows_are_standardised_as_in_one_batch() -> None:
    """The mean of 1, 2, 3, 6 is 3, and their variance (4 + 1 + 0 + 9) / 4 = 3.5."""
    parts = [np.array([1.0, 2.0], np.float32), np.array([3.0, 6.0], np.float32)]
    moments = Moments.merge(map(Moments.of, parts))
    assert moments == (4, 12.0, 50.0)
    first, second = (moments.standardise(part, epsilon=0.0) for part in parts)
    assert first.dtype == np.float32
    np.testing.assert_allclose([*first, *second], np.array([-2.0, -1.0, 0.0, 3.0]) / 3.5**0.5, rtol=1e-6)


def test_a_large_mean_costs_no_digits() -> None:
    column = (1e4 + np.random.default_rng(0).standard_normal(1000)).astype(np.float32)
    moments = Moments.merge(Moments.of(part) for part in np.split(column, 4))
    exact = (column.astype(float) - column.mean(dtype=float)) / column.std(dtype=float)
    np.testing.assert_allclose(moments.standardise(column), exact, atol=1e-6)


@pytest.mark.parametrize("column", [np.full(3, 2.0), np.empty(0)])
def test_equal_values_and_none_are_no_division_by_zero(column: np.ndarray) -> None:
    np.testing.assert_array_equal(Moments.of(column).standardise(column), np.zeros(len(column)))
