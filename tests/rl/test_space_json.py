"""Spaces written as JSON and read back."""

import json
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from raceway.errors import ConfigError
from raceway.rl.space_json import space_from_json, space_to_json

SPACES = [
    spaces.Box(-1, 1, (3,)),
    spaces.Box(-np.inf, np.inf, (2, 2), np.float64),
    spaces.Box(np.array([-1, -np.inf, 0.1], np.float32), np.array([1, 0, np.inf], np.float32)),
    spaces.Box(0, 255, (84, 84, 4), np.uint8),
    spaces.Box(-5, 5, (), np.int32),
    spaces.Box(-1, 1, (0,)),
    spaces.Box(0, 1, (2,), np.bool_),
    spaces.Discrete(4),
    spaces.Discrete(3, start=-2),
    spaces.Discrete(3, dtype=np.int32),
    spaces.MultiDiscrete([2, 3]),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 2], [3, -4]], dtype=np.int32),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.Dict([("z", spaces.Discrete(2)), ("a", spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.MultiBinary(1)]))]),
    spaces.Dict({}),
    spaces.Tuple([]),
]


def round_trip(space: spaces.Space) -> spaces.Space:
    """Write a space as strict JSON, which has no NaN and no infinity, and read it back."""
    return space_from_json(json.loads(json.dumps(space_to_json(space), allow_nan=False)))


def assert_identical(first: spaces.Space, second: spaces.Space) -> None:
    """Compare spaces exactly: Gymnasium accepts bounds that are nearly the same, and parts in another order."""
    assert type(first) is type(second)
    assert first == second
    if isinstance(first, spaces.Box):
        np.testing.assert_array_equal(first.low, second.low)
        np.testing.assert_array_equal(first.high, second.high)
        np.testing.assert_array_equal(first.bounded_below, second.bounded_below)
        np.testing.assert_array_equal(first.bounded_above, second.bounded_above)
    if isinstance(first, spaces.Dict):
        assert list(first.spaces) == list(second.spaces)
    if isinstance(first, (spaces.Dict, spaces.Tuple)):
        parts = [list(space.spaces.values()) if isinstance(space, spaces.Dict) else space.spaces
                 for space in (first, second)]  # fmt: skip
        for pair in zip(*parts, strict=True):
            assert_identical(*pair)


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_a_space_survives_a_round_trip(space: spaces.Space) -> None:
    assert_identical(space, round_trip(space))


def test_equal_bounds_are_one_number() -> None:
    doc = space_to_json(spaces.Box(0, 255, (84, 84, 4), np.uint8))
    assert doc == {"type": "Box", "low": 0, "high": 255, "shape": [84, 84, 4], "dtype": "uint8"}


def test_the_order_of_the_parts_is_kept() -> None:
    space = spaces.Dict([("b", spaces.Discrete(2)), ("a", spaces.Discrete(3))])
    assert list(round_trip(space).spaces) == ["b", "a"]


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float16, np.uint8, np.int32, np.int8]))
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, max_side=3))
    numbers = {"allow_nan": False} if np.issubdtype(dtype, np.floating) else {}
    sides = [
        draw(arrays.arrays(dtype, shape, elements=arrays.from_dtype(np.dtype(dtype), **numbers))) for _ in range(2)
    ]
    low, high = np.minimum(*sides), np.maximum(*sides)
    if np.issubdtype(dtype, np.floating):
        # Gymnasium refuses a lower bound of +inf and an upper bound of -inf.
        low = np.where(low == np.inf, np.finfo(dtype).min, low).astype(dtype)
        high = np.where(high == -np.inf, np.finfo(dtype).max, high).astype(dtype)
        high = np.maximum(low, high)
    return spaces.Box(low, high, shape, dtype)


def discretes() -> st.SearchStrategy[spaces.Space]:
    counts = st.integers(1, 1000)
    return st.builds(lambda n, start: spaces.Discrete(n, start=start), counts, st.integers(-1000, 1000))


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    shape = draw(arrays.array_shapes(max_dims=2, max_side=3))
    nvec = draw(arrays.arrays(np.int64, shape, elements=st.integers(1, 50)))
    return spaces.MultiDiscrete(nvec, start=draw(arrays.arrays(np.int64, shape, elements=st.integers(-50, 50))))


LEAVES = st.one_of(boxes(), discretes(), multi_discretes(), st.builds(spaces.MultiBinary, st.integers(1, 9)))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(spaces.Tuple, st.lists(inner, max_size=3)),
        st.builds(
            lambda parts: spaces.Dict(list(parts.items())), st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
    ),
    max_leaves=5,
)


@given(NESTED)
def test_any_space_survives_a_round_trip(space: spaces.Space) -> None:
    assert_identical(space, round_trip(space))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Text(5), "type Text"),
        (spaces.Dict({"a": spaces.Sequence(spaces.Discrete(2))}), "type Sequence"),
        (spaces.Dict([(1, spaces.Discrete(2))]), "the key 1"),
    ],
)
def test_a_space_that_cannot_be_written_is_named(space: spaces.Space, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space_to_json(space)


@pytest.mark.parametrize(
    ("doc", "message"),
    [
        ({}, "does not describe a space"),
        ([1], "does not describe a space"),
        ({"type": "Bx"}, "Did you mean 'Box'"),
        ({"type": "Discrete", "n": 0, "start": 0, "dtype": "int64"}, "does not describe a Discrete space"),
        ({"type": "Discrete", "start": 0, "dtype": "int64"}, "has no 'n'"),
        ({"type": "Box", "low": [1, 2], "high": 1, "shape": [3], "dtype": "float32"}, "does not describe a Box space"),
        ({"type": "Box", "low": "x", "high": 1, "shape": [3], "dtype": "float32"}, "does not describe a Box space"),
        ({"type": "Box", "low": 0, "high": 1, "shape": [3], "dtype": "object"}, "does not describe a Box space"),
        ({"type": ["Box"]}, "does not describe a space"),
        ({"type": "Box", "low": 0, "high": 1, "shape": [10**14], "dtype": "float32"}, "100,000,000,000,000 numbers"),
        ({"type": "Box", "low": 0, "high": 1, "shape": [10**9, "a"], "dtype": "float32"}, "are not sizes"),
        ({"type": "MultiBinary", "n": 10**14}, "100,000,000,000,000 numbers"),
        ({"type": "Tuple", "spaces": [{"type": "Box", "low": 0, "high": 1, "shape": [2**25], "dtype": "int8"}] * 3},
         "a Tuple space of 100,663,296 numbers is too large"),
        ({"type": "Dict", "spaces": [["a", {"type": "Discrete"}]]}, "a Discrete space has no 'dtype'"),
    ],
)  # fmt: skip
def test_an_invalid_description_is_an_error(doc: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        space_from_json(doc)


def test_a_space_that_is_nested_too_deeply_is_an_error() -> None:
    doc: Any = {"type": "Discrete", "n": 2, "start": 0, "dtype": "int64"}
    for _ in range(500):
        doc = {"type": "Tuple", "spaces": [doc]}
    with pytest.raises(ConfigError, match="is nested too deeply"):
        space_from_json(doc)
