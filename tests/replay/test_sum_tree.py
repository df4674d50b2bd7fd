"""The sum tree, against a running sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.replay import SumTree

SIZES = [1, 2, 16, 17, 256, 257, 5000]


@pytest.mark.parametrize("size", SIZES)
def test_find_agrees_with_a_running_sum(size: int) -> None:
    random = np.random.default_rng(size)
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(20):
        index = random.integers(0, size, 30)
        new = random.integers(0, 4, 30).astype(float)  # integers: sums are exact
        values[index] = new
        tree.put(index, new)
        np.testing.assert_array_equal(tree.values, values)
        assert tree.total == values.sum()
        if tree.total:
            targets = random.random(50) * tree.total
            expected = np.searchsorted(np.cumsum(values), targets, side="right")
            np.testing.assert_array_equal(tree.find(targets), expected)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300).filter(sum), st.floats(0, 1))
def test_find_never_returns_a_value_of_zero(values: list[float], share: float) -> None:
    tree = SumTree(len(values))
    tree.put(np.arange(len(values)), np.array(values))
    for target in (share * tree.total, np.nextafter(tree.total, 0), tree.total):
        (position,) = tree.find(np.array([target]))
        assert values[position] > 0


def test_the_last_value_put_at_an_index_counts() -> None:
    tree = SumTree(20)
    tree.put(np.array([3, 17, 3]), np.array([5.0, 1.0, 2.0]))
    assert tree.values[3] == 2
    assert tree.total == 3
