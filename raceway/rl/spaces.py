"""Arrays for what spaces hold. Dict and Tuple become nested mappings; everything else is one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.errors import ConfigError

Tree = Any
"""An array, or a nested mapping of arrays."""


def empty(space: spaces.Space, shape: tuple[int, ...]) -> Tree:
    """Return arrays for so many observations or actions. Floats are of 32 bits: networks use no more.

    What they hold is of the space if that has zeros, and if it is one of choices: a network may be tried on them.

    >>> empty(spaces.Box(-1, 1, (3,)), (5, 2)).shape
    (5, 2, 3)
    """
    if isinstance(space, spaces.Dict):
        return {key: empty(part, shape) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {str(place): empty(part, shape) for place, part in enumerate(space.spaces)}
    if isinstance(space, spaces.Discrete):
        return np.full(shape, space.start, np.int64)
    if isinstance(space, (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)):
        kind = np.float32 if np.issubdtype(space.dtype, np.floating) else space.dtype
        arrays = np.zeros((*shape, *space.shape), kind)
        return arrays + space.start if isinstance(space, spaces.MultiDiscrete) else arrays
    raise ConfigError(
        f"spaces of type {type(space).__name__} are not supported: {space}. Use Box, Discrete, MultiDiscrete, "
        "MultiBinary, or Dict and Tuple of them; a wrapper of the environment can convert."
    )


def row_of(tree: Tree, index: Any) -> Tree:
    """Return the part of every array at an index: a view, where the index is a number or a slice.

    A tuple, as vector environments give for a Tuple space, becomes a mapping.

    >>> row_of({"a": np.arange(4).reshape(2, 2)}, 1)
    {'a': array([2, 3])}
    """
    if isinstance(tree, tuple):
        return {str(place): row_of(part, index) for place, part in enumerate(tree)}
    return {key: row_of(part, index) for key, part in tree.items()} if isinstance(tree, Mapping) else tree[index]


def fill(tree: Tree, index: Any, value: Any) -> None:
    """Copy an observation into the arrays at an index. Raise ValueError, which says what, if its form is another."""
    if isinstance(tree, Mapping):
        parts = {str(place): part for place, part in enumerate(value)} if isinstance(value, tuple) else value
        if not isinstance(parts, Mapping) or not tree.keys() <= parts.keys():
            shown = f"the parts {list(parts)}" if isinstance(parts, Mapping) else f"type {type(value).__name__}"
            raise ValueError(f"an observation of {shown}, where its space says {list(tree)}")
        for key, part in tree.items():
            fill(part, index, parts[key])
        return
    seen = np.asarray(value)
    expected = tree.shape[1:] if isinstance(index, int) else tree.shape
    if seen.shape != expected:  # numpy would repeat a smaller one without a word
        raise ValueError(f"an observation of shape {seen.shape}, where its space says {expected}")
    if not _fits(seen, tree.dtype):  # and make numbers of text, and of NaN a 0
        shown = f"{seen.dtype} {seen.ravel()[:4].tolist()}"
        raise ValueError(f"an observation of {shown}, where its space says {tree.dtype}")
    tree[index] = seen


def _fits(seen: np.ndarray, kind: np.dtype) -> bool:
    """Whether numbers can be written as others without becoming something else. They may lose digits."""
    if kind.kind == "f":
        return seen.dtype.kind in "biuf"
    if seen.dtype.kind not in "biu":
        return False
    if kind == seen.dtype or kind.kind == "b" or not seen.size:
        return True
    return bool(np.iinfo(kind).min <= int(seen.min()) and int(seen.max()) <= np.iinfo(kind).max)


def check_choices(space: spaces.Space, value: Any) -> None:
    """Raise ValueError if one of the choices in an observation is none that its space has."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            check_choices(part, value[key])
    elif isinstance(space, spaces.Tuple):
        for part, one in zip(space.spaces, value, strict=True):
            check_choices(part, one)
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        number = np.asarray(value) - space.start
        most = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if (number < 0).any() or (number >= most).any():
            raise ValueError(f"an observation of {value}, which is not in {space}")


def has_choices(space: spaces.Space) -> bool:
    """Whether there are choices in a space."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(map(has_choices, parts))
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete))


def obs_space_of(space: spaces.Space) -> tuple[spaces.Space, bool]:
    """Return the space that a network sees, and whether a mask of allowed actions lies beside it.

    An environment offers a mask as the entry `action_mask` of a Dict observation.
    """
    if not isinstance(space, spaces.Dict) or "action_mask" not in space.spaces:
        return space, False
    rest = {key: part for key, part in space.spaces.items() if key != "action_mask"}
    if not rest:
        raise ConfigError("an observation that is only an action_mask has nothing for a network to see")
    return (next(iter(rest.values())) if list(rest) == ["observation"] else spaces.Dict(rest)), True
