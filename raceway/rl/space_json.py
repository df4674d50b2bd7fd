"""Spaces as JSON, so that whoever reads a run knows what its policy saw and did without making the environment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.checks import check_choice
from raceway.errors import ConfigError

Array = np.ndarray
MOST = 1 << 26
"""Numbers in a sample of a space that is read, at most: a line of text may claim any number of them."""


def space_to_json(space: spaces.Space) -> dict[str, Any]:
    """Describe a space by what JSON can hold. Numbers that are not finite become text, for JSON has none.

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
        strange = [key for key in space.spaces if not isinstance(key, str)]
        if strange:
            raise ConfigError(f"the key {strange[0]!r} of {space} cannot be written as JSON: use text for the keys")
        # Pairs, for the order of the parts is that of a network's inputs.
        return {"type": "Dict", "spaces": [[key, space_to_json(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(part) for part in space.spaces]}
    raise ConfigError(
        f"a space of type {type(space).__name__} cannot be written as JSON: {space}. Use {', '.join(_READ)}; a wrapper "
        "of the environment can convert."
    )


def space_from_json(doc: Mapping[str, Any]) -> spaces.Space:
    """Return the space that `space_to_json` described.

    >>> space_from_json({"type": "Discrete", "n": 4, "start": 1, "dtype": "int64"})
    Discrete(4, start=1)
    """
    if not isinstance(doc, Mapping) or not isinstance(doc.get("type"), str):
        raise ConfigError(f"{doc!r} describes no space: it must have a type, one of {', '.join(_READ)}")
    kind = check_choice("type of space", doc["type"], _READ)
    try:
        if _size(doc) > MOST:
            raise ConfigError(f"a {kind} space of {_size(doc):,} numbers is refused: there may be {MOST:,} at most")
        return _READ[kind](doc)
    except KeyError as error:
        raise ConfigError(f"the description of a {kind} space has no {error}: {dict(doc)}") from error
    except RecursionError as error:
        raise ConfigError(f"a {kind} space has too many others within one another") from error
    except (TypeError, ValueError, AttributeError, OverflowError, MemoryError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{dict(doc)} describes no {kind} space: {error}") from error


def _size(doc: Any) -> int:
    """Return how many numbers a sample of a space has, before anything is made of its description."""
    if not isinstance(doc, Mapping):
        return 0
    if doc.get("type") in ("Dict", "Tuple"):
        return sum(_size(part[-1] if isinstance(part, list) and part else part) for part in doc["spaces"])
    sizes = doc["shape"] if doc.get("type") == "Box" else doc["n"] if doc.get("type") == "MultiBinary" else [0]
    sizes = sizes if isinstance(sizes, list) else [sizes]
    if not all(isinstance(size, int) for size in sizes):
        raise TypeError(f"{sizes} are no sizes")
    return math.prod(sizes)


def _box(doc: Mapping[str, Any]) -> spaces.Box:
    shape, kind = tuple(doc["shape"]), np.dtype(doc["dtype"])
    low, high = (np.broadcast_to(_numbers(doc[side], kind), shape).copy() for side in ("low", "high"))
    return spaces.Box(low, high, shape, kind.type)


def _discrete(doc: Mapping[str, Any]) -> spaces.Discrete:
    kind = np.dtype(doc["dtype"])
    made = spaces.Discrete(doc["n"], start=doc["start"])
    if kind != made.dtype:  # which older versions of Gymnasium do not take
        made = spaces.Discrete(doc["n"], start=doc["start"], dtype=kind.type)
    return made


def _multi_discrete(doc: Mapping[str, Any]) -> spaces.MultiDiscrete:
    kind = np.dtype(doc["dtype"]).type
    return spaces.MultiDiscrete(np.array(doc["nvec"], kind), dtype=kind, start=np.array(doc["start"], kind))


_READ: dict[str, Any] = {
    "Box": _box,
    "Discrete": _discrete,
    "MultiDiscrete": _multi_discrete,
    "MultiBinary": lambda doc: spaces.MultiBinary(doc["n"]),
    "Dict": lambda doc: spaces.Dict([(key, space_from_json(part)) for key, part in doc["spaces"]]),
    "Tuple": lambda doc: spaces.Tuple([space_from_json(part) for part in doc["spaces"]]),
}


def _compact(bounds: Array) -> Any:
    """Return one number if they are all the same, or else nested lists."""
    if bounds.size and bool((bounds == bounds.flat[0]).all()):
        return _plain(bounds.flat[0].item())
    return _plain(bounds.tolist())


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any, kind: np.dtype) -> Array:
    """Return bounds as an array. Texts such as '-inf' are numbers too."""
    return np.array(_read(value), kind)


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(part) for part in value]
    return float(value) if isinstance(value, str) else value
