"""Spaces as JSON, so that a policy can be loaded from its run without making the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.checks import check_choice
from raceway.errors import ConfigError

Array = np.ndarray
MAX_NUMBERS = 1 << 26
"""Largest number of elements in a space that is read: a line of JSON can claim any number of them."""


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """Describe a space in JSON types. Numbers that are not finite become strings, as JSON has none.

    >>> space_to_json(spaces.Box(-np.inf, 1, (3,)))
    {'type': 'Box', 'low': '-inf', 'high': 1.0, 'shape': [3], 'dtype': 'float32'}
    """
    if isinstance(space, spaces.Box):
        bounds = {"low": _compact(space.low), "high": _compact(space.high)}
        return {"type": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", **numbers, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(size) for size in space.n]}
    if isinstance(space, spaces.Dict):
        other_keys = [key for key in space.spaces if not isinstance(key, str)]
        if other_keys:
            raise ConfigError(f"the key {other_keys[0]!r} of {space} cannot be written as JSON: use strings as keys")
        # Pairs, because the order of the parts is that of a network's inputs.
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise ConfigError(
        f"a space of type {type(space).__name__} cannot be written as JSON: {space}. Use {', '.join(_READERS)}, or "
        "convert the space with a wrapper."
    )


def space_from_json(doc: Mapping[str, Any]) -> spaces.Space:
    """Return the space that `space_to_json` described.

    >>> space_from_json({"type": "Discrete", "n": 4, "start": 1, "dtype": "int64"})
    Discrete(4, start=1)
    """
    if not isinstance(doc, Mapping) or not isinstance(doc.get("type"), str):
        raise ConfigError(f"{doc!r} does not describe a space: its type must be one of {', '.join(_READERS)}")
    kind = check_choice("type of space", doc["type"], _READERS)
    try:
        if _size(doc) > MAX_NUMBERS:
            raise ConfigError(f"a {kind} space of {_size(doc):,} numbers is too large: the limit is {MAX_NUMBERS:,}")
        return _READERS[kind](doc)
    except KeyError as error:
        raise ConfigError(f"the description of a {kind} space has no {error}: {dict(doc)}") from error
    except RecursionError as error:
        raise ConfigError(f"a {kind} space is nested too deeply") from error
    except (TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{dict(doc)} does not describe a {kind} space: {error}") from error


def without_bounds(space: spaces.Space) -> Any:
    """Describe a space like `space_to_json`, but without the bounds of its Box parts: for comparisons.

    >>> without_bounds(spaces.Box(-1, 1, (3,))) == without_bounds(spaces.Box(-2, 2, (3,)))
    True
    """

    def remove_bounds(doc: Any) -> Any:
        if isinstance(doc, list):
            return [remove_bounds(part) for part in doc]
        if not isinstance(doc, dict):
            return doc
        return {key: remove_bounds(part) for key, part in doc.items() if key not in ("low", "high")}

    return remove_bounds(space_to_json(space))


def _size(doc: Any) -> int:
    """Return the number of elements of a space from its description, before anything is allocated."""
    if not isinstance(doc, Mapping):
        return 0
    if doc.get("type") in ("Dict", "Tuple"):
        return sum(_size(part[-1] if isinstance(part, list) and part else part) for part in doc["spaces"])
    sizes = doc["shape"] if doc.get("type") == "Box" else doc["n"] if doc.get("type") == "MultiBinary" else [0]
    sizes = sizes if isinstance(sizes, list) else [sizes]
    if not all(isinstance(size, int) for size in sizes):
        raise TypeError(f"{sizes} are not sizes")
    return math.prod(sizes)


def _box(doc: Mapping[str, Any]) -> spaces.Box:
    shape, dtype = tuple(doc["shape"]), np.dtype(doc["dtype"])
    low, high = (np.broadcast_to(_bounds(doc[side], dtype), shape).copy() for side in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _discrete(doc: Mapping[str, Any]) -> spaces.Discrete:
    dtype = np.dtype(doc["dtype"])
    space = spaces.Discrete(doc["n"], start=doc["start"])
    if dtype != space.dtype:  # older versions of Gymnasium have no dtype argument
        space = spaces.Discrete(doc["n"], start=doc["start"], dtype=dtype.type)
    return space


def _multi_discrete(doc: Mapping[str, Any]) -> spaces.MultiDiscrete:
    dtype = np.dtype(doc["dtype"]).type
    return spaces.MultiDiscrete(np.array(doc["nvec"], dtype), dtype=dtype, start=np.array(doc["start"], dtype))


_READERS: dict[str, Any] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda doc: spaces.MultiBinary(doc["n"]),
    "Dict": lambda doc: spaces.Dict([(key, space_from_json(part)) for key, part in doc["spaces"]]),
    "Tuple": lambda doc: spaces.Tuple([space_from_json(part) for part in doc["spaces"]]),
}


def _compact(bounds: Array) -> Any:
    """Return one number if all bounds are the same, else nested lists."""
    if bounds.size and bool((bounds == bounds.flat[0]).all()):
        return _to_json(bounds.flat[0].item())
    return _to_json(bounds.tolist())


def _to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_json(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _bounds(value: Any, dtype: np.dtype) -> Array:
    """Return bounds as an array. Strings such as '-inf' are numbers too."""
    return np.array(_parse_floats(value), dtype)


def _parse_floats(value: Any) -> Any:
    if isinstance(value, list):
        return [_parse_floats(part) for part in value]
    return float(value) if isinstance(value, str) else value
