"""Batches: trees of arrays."""

import numpy as np
import pytest

from raceway.rl import concat, num_steps, tree_map


def test_tree_map_applies_to_every_array() -> None:
    result = tree_map(len, {"a": [1, 2], "b": {"c": [3], "d": {"e": []}}})
    assert result == {"a": 2, "b": {"c": 1, "d": {"e": 0}}}


def test_a_tree_may_be_one_array() -> None:
    assert tree_map(lambda x: 2 * x, 3) == 6


def test_tree_map_of_several_trees() -> None:
    first, second = {"a": 1, "b": {"c": 2}}, {"b": {"c": 20}, "a": 10}
    assert tree_map(lambda *parts: sum(parts), first, second, first) == {"a": 12, "b": {"c": 24}}


def test_tree_map_refuses_a_tree_with_a_missing_part() -> None:
    with pytest.raises(KeyError, match="b"):
        tree_map(max, {"a": 1, "b": 2}, {"a": 3})


def test_concatenated_batches() -> None:
    first = {"obs": {"x": np.array([[1, 2]]), "y": np.array([0.5])}, "reward": np.array([1.0])}
    second = {"obs": {"x": np.array([[3, 4], [5, 6]]), "y": np.array([1.5, 2.5])}, "reward": np.array([2.0, 3.0])}
    result = concat([first, second])
    np.testing.assert_array_equal(result["obs"]["x"], [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(result["obs"]["y"], [0.5, 1.5, 2.5])
    np.testing.assert_array_equal(result["reward"], [1, 2, 3])


def test_a_single_batch_is_not_copied() -> None:
    batch = {"reward": np.zeros(2)}
    assert concat([batch]) is batch


def test_an_empty_batch_adds_nothing() -> None:
    result = concat([{"reward": np.zeros(0, np.float32)}, {"reward": np.ones(2, np.float32)}])
    np.testing.assert_array_equal(result["reward"], [1, 1])
    assert result["reward"].dtype == np.float32


def test_only_valid_steps_count() -> None:
    assert num_steps({"reward": np.zeros((3, 2))}) == 6
    assert num_steps({"reward": np.zeros((3, 2)), "valid": np.array([[1, 1], [0, 1], [1, 0]], bool)}) == 4
