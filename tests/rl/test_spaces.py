"""Arrays for every space, filled and read by row."""

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from raceway.errors import ConfigError
from raceway.rl import empty, fill, network_obs_space, row_of, tree_map

LEAVES = [
    (spaces.Box(-1, 1, (3,)), (3,), np.float32),
    (spaces.Box(-1, 1, (3, 2), np.float64), (3, 2), np.float32),
    (spaces.Box(-1, 1, ()), (), np.float32),
    (spaces.Box(0, 255, (4, 4, 1), np.uint8), (4, 4, 1), np.uint8),
    (spaces.Box(-5, 5, (2,), np.int32), (2,), np.int32),
    (spaces.Discrete(4), (), np.int64),
    (spaces.Discrete(4, start=3), (), np.int64),
    (spaces.MultiDiscrete([2, 3]), (2,), np.int64),
    (spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, -4]]), (2, 2), np.int64),
    (spaces.MultiBinary(3), (3,), np.int8),
]
NESTED = spaces.Dict(
    {
        "place": spaces.Box(-1, 1, (2,)),
        "pair": spaces.Tuple([spaces.Discrete(3), spaces.Dict({"x": spaces.Discrete(2)})]),
    }
)


@pytest.mark.parametrize(("space", "shape", "dtype"), LEAVES)
def test_arrays_have_the_shape_and_dtype_of_the_space(space: spaces.Space, shape: tuple[int, ...], dtype: Any) -> None:
    arrays = empty(space, (5, 2))
    assert arrays.shape == (5, 2, *shape)
    assert arrays.dtype == dtype
    assert arrays.flags.writeable


@pytest.mark.parametrize("space", [space for space, _, _ in LEAVES])
def test_new_arrays_hold_values_of_the_space(space: spaces.Space) -> None:
    assert space.contains(np.asarray(empty(space, (2,))[0], space.dtype))


def test_dict_and_tuple_become_mappings() -> None:
    arrays = empty(NESTED, (4,))
    assert tree_map(np.shape, arrays) == {"place": (4, 2), "pair": {"0": (4,), "1": {"x": (4,)}}}


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))})])
def test_other_spaces_are_refused(space: spaces.Space) -> None:
    with pytest.raises(ConfigError, match=r"spaces of type (Text|Sequence) are not supported.*a wrapper"):
        empty(space, (1,))


def test_a_row_of_every_array() -> None:
    tree = {"a": np.arange(12).reshape(3, 2, 2), "b": {"c": np.arange(6).reshape(3, 2)}}
    row = row_of(tree, (2, 1))
    np.testing.assert_array_equal(row["a"], [10, 11])
    assert row["b"]["c"] == 5
    many = row_of(tree, (np.array([0, 2]), np.array([1, 0])))
    np.testing.assert_array_equal(many["b"]["c"], [1, 4])


def test_a_row_is_a_view() -> None:
    tree = {"a": np.zeros((2, 2))}
    row_of(tree, 1)["a"][:] = 7
    np.testing.assert_array_equal(tree["a"], [[0, 0], [7, 7]])


def test_a_row_of_a_tuple_from_a_vector_environment() -> None:
    row = row_of((np.array([1, 2, 3]), {"x": np.array([4, 5, 6])}), 1)
    assert row == {"0": 2, "1": {"x": 5}}


def test_an_observation_is_copied_into_its_row_only() -> None:
    arrays = empty(NESTED, (3,))
    fill(arrays, 1, {"place": np.array([0.5, -1]), "pair": (2, {"x": 1})})
    np.testing.assert_array_equal(arrays["place"], [[0, 0], [0.5, -1], [0, 0]])
    np.testing.assert_array_equal(arrays["pair"]["0"], [0, 2, 0])
    np.testing.assert_array_equal(arrays["pair"]["1"]["x"], [0, 1, 0])


def test_all_rows_are_filled_at_once() -> None:
    arrays = empty(NESTED, (2,))
    fill(arrays, slice(None), {"place": [[1, 2], [3, 4]], "pair": (np.array([1, 2]), {"x": np.array([0, 1])})})
    np.testing.assert_array_equal(arrays["place"], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(arrays["pair"]["0"], [1, 2])
    np.testing.assert_array_equal(arrays["pair"]["1"]["x"], [0, 1])


@pytest.mark.parametrize("index", [0, slice(None)])
@pytest.mark.parametrize("shape", [(), (1,), (2,), (3, 1), (2, 1, 3)])
def test_another_shape_is_refused_although_numpy_would_broadcast_it(index: Any, shape: tuple[int, ...]) -> None:
    arrays = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"an observation of shape .*; expected"):
        fill(arrays, index, np.ones(shape))
    assert not arrays.any()


@pytest.mark.parametrize("value", [{"place": [0, 0]}, {}, {"other": 1}, 3, [1, 2], None, (1, 2, 3)])
def test_an_observation_that_lacks_a_part_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"; expected \['pair', 'place'\]"):
        fill(empty(NESTED, (1,)), 0, value)


def test_a_short_tuple_is_refused() -> None:
    space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
    with pytest.raises(ValueError, match=r"of the parts \['0'\]; expected \['0', '1'\]"):
        fill(empty(space, (1,)), 0, (1,))


@given(st.integers(0, 999), st.integers(1, 4))
def test_filled_rows_are_read_back(seed: int, rows: int) -> None:
    NESTED.seed(seed)
    arrays, values = empty(NESTED, (rows,)), [NESTED.sample() for _ in range(rows)]
    for index, value in enumerate(values):
        fill(arrays, index, value)
    for index, value in enumerate(values):
        row = row_of(arrays, index)
        np.testing.assert_array_equal(row["place"], value["place"])
        assert (row["pair"]["0"], row["pair"]["1"]["x"]) == (value["pair"][0], value["pair"][1]["x"])


def test_the_action_mask_is_split_from_the_observation() -> None:
    mask, board, hand = spaces.MultiBinary(3), spaces.Box(0, 1, (2,)), spaces.Discrete(4)
    assert network_obs_space(board) == (board, False)
    assert network_obs_space(spaces.Dict({"board": board})) == (spaces.Dict({"board": board}), False)
    assert network_obs_space(spaces.Dict({"observation": board, "action_mask": mask})) == (board, True)
    assert network_obs_space(spaces.Dict({"board": board, "action_mask": mask})) == (
        spaces.Dict({"board": board}),
        True,
    )
    both = spaces.Dict({"observation": board, "hand": hand, "action_mask": mask})
    assert network_obs_space(both) == (spaces.Dict({"observation": board, "hand": hand}), True)


def test_a_mask_without_an_observation_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing but an action_mask"):
        network_obs_space(spaces.Dict({"action_mask": spaces.MultiBinary(3)}))
