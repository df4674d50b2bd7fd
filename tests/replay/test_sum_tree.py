import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.replay import SumTree

SIZES = [1, 2, 16, 17, 256, 257, 5000]


@pytest.mark.parametrize("size", SIZES)
def test_finds_what_a_running_sum_finds(size: int) -> None:
    random = np.random.default_rng(size)
    tree, values = SumTree(size), np.zeros(size)
    for _ in range(20):
        places = random.integers(0, size, 30)
        new = random.integers(0, 4, 30).astype(float)  # whole numbers: sums are exact
        values[places] = new
        tree.put(places, new)
        np.testing.assert_array_equal(tree.values, values)
        assert tree.total == values.sum()
        if tree.total:
            targets = random.random(50) * tree.total
            expected = np.searchsorted(np.cumsum(values), targets, side="right")
            np.testing.assert_array_equal(tree.find(targets), expected)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=300).filter(sum), st.floats(0, 1))
def test_never_finds_a_place_without_weight(values: list[float], share: float) -> None:
    tree = SumTree(len(values))
    tree.put(np.arange(len(values)), np.array(values))
    for target in (share * tree.total, np.nextafter(tree.total, 0), tree.total):
        (place,) = tree.find(np.array([target]))
        assert values[place] > 0


def test_the_last_of_values_put_twice_counts() -> None:
    tree = SumTree(20)
    tree.put(np.array([3, 17, 3]), np.array([5.0, 1.0, 2.0]))
    assert tree.values[3] == 2
    assert tree.total == 3
