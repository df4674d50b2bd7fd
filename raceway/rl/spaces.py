"""Arrays for the observations and actions of a space. Dict and Tuple become nested mappings; others are one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.errors import ConfigError

Tree = Any
"""An array, or a nested mapping of arrays."""


def empty(space: spaces.Space, shape: tuple[int, ...]) -> Tree:
    """Allocate arrays of this shape for observations or actions. Floats have 32 bits: networks use no more.

    They are filled with zeros, or with the first value of a discrete space, so that a network can be tried on them.

    >>> empty(spaces.Box(-1, 1, (3,)), (5, 2)).shape
    (5, 2, 3)
    """
    if isinstance(space, spaces.Dict):
        return {key: empty(part, shape) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(index): empty(part, shape) for index, part in enumerate(space.spaces)}
    if isinstance(space, spaces.Discrete):
        return np.full(shape, space.start, np.int64)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        dtype = np.float32 if np.issubdtype(space.dtype, np.floating) else space.dtype
        arrays = np.zeros((*shape, *space.shape), dtype)
        return arrays + space.start if isinstance(space, spaces.MultiDiscrete) else arrays
    raise ConfigError(
        f"spaces of type {type(space).__name__} are not supported: {space}. Use Box, Discrete, MultiDiscrete, "
        "MultiBinary, or Dict and Tuple of them, or convert the space with a wrapper."
    )


def row_of(tree: Tree, index: Any) -> Tree:
    """Return every array of a tree at an index: views, where the index is a number or a slice.

    A tuple, as vector environments return for a Tuple space, becomes a mapping.

    >>> row_of({"a": np.arange(4).reshape(2, 2)}, 1)
    {'a': array([2, 3])}
    """
    if isinstance(tree, tuple):
        return {str(key): row_of(part, index) for key, part in enumerate(tree)}
    return {key: row_of(part, index) for key, part in tree.items()} if isinstance(tree, Mapping) else tree[index]


def fill(tree: Tree, index: Any, value: Any) -> None:
    """Copy an observation into the arrays at an index. Raise ValueError if its keys, shape or dtype do not fit."""
    if isinstance(tree, Mapping):
        parts = {str(key): part for key, part in enumerate(value)} if isinstance(value, tuple) else value
        if not isinstance(parts, Mapping) or not tree.keys() <= parts.keys():
            actual = f"the parts {list(parts)}" if isinstance(parts, Mapping) else f"type {type(value).__name__}"
            raise ValueError(f"an observation of {actual}; expected {list(tree)}")
        for key, part in tree.items():
            fill(part, index, parts[key])
        return
    obs = np.asarray(value)
    expected = tree.shape[1:] if isinstance(index, int) else tree.shape
    if obs.shape != expected:  # numpy would silently broadcast a smaller one
        raise ValueError(f"an observation of shape {obs.shape}; expected {expected}")
    if not _fits(obs, tree.dtype):  # and convert text to numbers, and NaN to 0
        actual = f"{obs.dtype} {obs.ravel()[:4].tolist()}"
        raise ValueError(f"an observation of {actual}; expected {tree.dtype}")
    tree[index] = obs


def _fits(values: np.ndarray, dtype: np.dtype) -> bool:
    """Whether values can be converted to a dtype and keep their meaning. Floats may lose precision."""
    if dtype.kind == "f":
        return values.dtype.kind in "biuf"
    if values.dtype.kind not in "biu":
        return False
    if dtype == values.dtype or dtype.kind == "b" or not values.size:
        return True
    return bool(np.iinfo(dtype).min <= int(values.min()) and int(values.max()) <= np.iinfo(dtype).max)


def check_discrete(space: spaces.Space, value: Any) -> None:
    """Raise ValueError if a discrete part of an observation is outside its space."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_discrete(part, value[key])
    elif isinstance(space, spaces.Tuple):
        for part, part_value in zip(space.spaces, value, strict=True):
            check_discrete(part, part_value)
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        number = np.asarray(value) - space.start
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if (number < 0).any() or (number >= count).any():
            raise ValueError(f"an observation of {value}, which is not in {space}")


def has_discrete(space: spaces.Space) -> bool:
    """Whether a space is discrete or has a discrete part."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(has_discrete, parts))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))


def network_obs_space(space: spaces.Space) -> tuple[spaces.Space, bool]:
    """Return the part of an observation space that the network sees, and whether there is an action mask beside it.

    An environment provides a mask of allowed actions as the entry `action_mask` of a Dict observation.
    """
    if not isinstance(space, spaces.Dict) or "action_mask" not in space.spaces:
        return space, False
    rest = {key: part for key, part in space.spaces.items() if key != "action_mask"}
    if not rest:
        raise ConfigError("the observation has nothing but an action_mask. Add an entry for the network to see.")
    return (next(iter(rest.values())) if list(rest) == ["observation"] else spaces.Dict(rest)), True
