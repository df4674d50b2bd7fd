"""Reading observations that a user passes: a single one or a batch, as arrays of the types that networks take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.errors import ConfigError
from raceway.rl import empty, tree_map
from raceway.rl.spaces import Tree

Array = np.ndarray


def batch_observations(space: spaces.Space, obs: Any) -> tuple[Tree, int | None]:
    """Return observations as a batch of arrays, and their number: None for a single observation.

    >>> batch_observations(spaces.Box(-1, 1, (2,)), [0.5, 1])
    (array([[0.5, 1. ]], dtype=float32), None)
    >>> batch_observations(spaces.Discrete(5), np.array([1, 4]))
    (array([1, 4]), 2)
    """
    sizes: dict[str, int | None] = {}
    tree = _read(space, obs, "", sizes)
    different = set(sizes.values())
    if len(different) > 1:
        parts = ", ".join(f"{path}: {'one' if num is None else f'a batch of {num}'}" for path, num in sizes.items())
        raise ConfigError(f"the parts of the observation do not fit together ({parts})")
    num = next(iter(different), None)
    return (tree_map(lambda part: part[None], tree) if num is None else tree), num


def _read(space: spaces.Space, obs: Any, path: str, sizes: dict[str, int | None]) -> Tree:
    """Return the arrays of an observation, and add the batch size of each part to `sizes`."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))
        inner = {str(key): part for key, part in parts.items()}
        values = {str(key): part for key, part in _items(obs, path, list(inner))}
        if values.keys() != inner.keys():
            raise ConfigError(f"{_describe(path)} has the parts {list(values)}; expected {list(inner)}")
        return {key: _read(part, values[key], f"{path}.{key}" if path else key, sizes) for key, part in inner.items()}
    array = _to_array(space, obs, path)
    shape = space.shape or ()
    if array.shape == shape:
        sizes[path] = None
    elif array.ndim and array.shape[1:] == shape:
        sizes[path] = len(array)
    else:
        batch = f"(N, {', '.join(map(str, shape))})" if shape else "(N,)"
        raise ConfigError(
            f"{_describe(path)} has shape {array.shape}; expected {shape} for one, or {batch} for a batch"
        )
    _check_values(space, array, path)
    return array


def _items(obs: Any, path: str, expected: list[str]) -> Iterable[tuple[Any, Any]]:
    if isinstance(obs, Mapping):
        return obs.items()
    if isinstance(obs, tuple):
        return enumerate(obs)
    raise ConfigError(
        f"{_describe(path)} is a {type(obs).__name__}; expected a mapping or tuple of the parts {expected}"
    )


def _to_array(space: spaces.Space, obs: Any, path: str) -> Array:
    """Return one part of an observation as an array, in the dtype that networks take."""
    if isinstance(obs, Mapping):
        raise ConfigError(f"{_describe(path)} is a mapping of {list(obs)}; expected an array of {space}")
    try:
        array = np.asarray(obs)
    except ValueError as error:
        raise ConfigError(f"{_describe(path)} is not an array: {error}") from error
    dtype = empty(space, ()).dtype
    accepted = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}[dtype.kind]
    fits = array.dtype.kind in accepted
    if fits and dtype.kind in "iu" and array.size:
        limits = np.iinfo(dtype)
        fits = bool(limits.min <= array.min() and array.max() <= limits.max)
    if not fits:
        raise ConfigError(f"{_describe(path)} is of type {array.dtype}; expected {dtype} of {space}")
    # Always a copy: torch shares the memory, and ignores that an array is read-only.
    return np.array(array, dtype)


def _check_values(space: spaces.Space, array: Array, path: str) -> None:
    """Raise ConfigError for values that are not finite, or outside a discrete space."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{_describe(path)} has numbers that are not finite: {array.ravel()[:8].tolist()}")
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        count = space.n if isinstance(space, spaces.Discrete) else space.nvec
        if ((array < space.start) | (array >= space.start + count)).any():
            raise ConfigError(f"{_describe(path)} has values outside of {space}: {array.ravel()[:8].tolist()}")


def _describe(path: str) -> str:
    return f"part {path!r} of the observation" if path else "the observation"
