"""Batches: trees of arrays."""

import numpy as np
import pytest

from raceway.rl import concat, num_steps, tree_map


def test_a_function_of_every_array_of_a_tree() -> None:
    found = tree_map(len, {"a": [1, 2], "b": {"c": [3], "d": {"e": []}}})
    assert found == {"a": 2, "b": {"c": 1, "d": {"e": 0}}}


def test_a_tree_may_be_one_array() -> None:
    assert tree_map(lambda x: 2 * x, 3) == 6


def test_several_trees_are_walked_side_by_side() -> None:
    one, other = {"a": 1, "b": {"c": 2}}, {"b": {"c": 20}, "a": 10}
    assert tree_map(lambda *parts: sum(parts), one, other, one) == {"a": 12, "b": {"c": 24}}


def test_a_tree_that_lacks_a_part_is_refused() -> None:
    with pytest.raises(KeyError, match="b"):
        tree_map(max, {"a": 1, "b": 2}, {"a": 3})


def test_batches_one_behind_the_other() -> None:
    first = {"obs": {"x": np.array([[1, 2]]), "y": np.array([0.5])}, "reward": np.array([1.0])}
    second = {"obs": {"x": np.array([[3, 4], [5, 6]]), "y": np.array([1.5, 2.5])}, "reward": np.array([2.0, 3.0])}
    found = concat([first, second])
    np.testing.assert_array_equal(found["obs"]["x"], [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(found["obs"]["y"], [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(found["reward"], [1, 2, 3])


def test_one_batch_is_not_copied() -> None:
    batch = {"reward": np.zeros(2)}
    assert concat([batch]) is batch


def test_an_empty_batch_adds_nothing() -> None:
    found = concat([{"reward": np.zeros(0, np.float32)}, {"reward": np.ones(2, np.float32)}])
    np.testing.assert_array_equal(found["reward"], [1, 1])
    assert found["reward"].dtype == np.float32


def test_only_valid_steps_count() -> None:
    assert num_steps({"reward": np.zeros((3, 2))}) == 6
    assert num_steps({"reward": np.zeros((3, 2)), "valid": np.array([[1, 1], [0, 1], [1, 0]], bool)}) == 4
