"""Encoding of states: from a tree of values to JSON and named arrays, and back. Nothing is ever pickled.

A value that is neither JSON nor an array is written as `{"$": kind, ...}`. A file can only name the kinds listed here
and classes registered as records: decoding it creates values, and never runs or imports anything that the file names.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.flow import Envelope, Source
from raceway.state import RECORDS, find_record, record, record_name

Array = np.ndarray
Arrays = dict[str, Array]

record(wall_clock=("started", "finished"), renamed={"begun": "started", "done": "finished"}, formerly=("Envelope",))(
    Envelope
)
record(wall_clock=("name",), formerly=("Source",))(Source)
record(formerly=("Counter",))(Counter)

WALL_CLOCK_KEY = "wall"
"""The entry of this name in any mapping holds wall-clock times, which are no part of a state's hash."""
_MAX_DECIMAL_BITS = 1000
"""Integers of at least this many bits are written in hexadecimal: Python refuses to parse very long decimals."""


def encode(value: Any, path: str = "state") -> tuple[Any, Arrays]:
    """Return a tree as JSON, and its arrays by their path in the tree.

    >>> encode({"steps": 3, "x": np.arange(2), "seen": (1, 2.5)})[0]
    {'steps': 3, 'x': {'$': 'array', 'v': 'state/x'}, 'seen': {'$': 'tuple', 'v': [1, 2.5]}}
    """
    arrays: Arrays = {}
    return _encode(value, path, arrays), arrays


def _encode(value: Any, path: str, arrays: Arrays) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is int and value.bit_length() < _MAX_DECIMAL_BITS):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if kind is list:
        return [_encode(part, f"{path}/{index}", arrays) for index, part in enumerate(value)]
    if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(part, f"{path}/{key}", arrays) for key, part in value.items()}
    if kind is np.ndarray and value.dtype.kind in "biufcmM":
        name = next(name for name in _array_names(path) if name not in arrays)
        arrays[name] = value
        return {"$": "array", "v": name}
    for name, (cls, to_fields, _) in _KINDS.items():
        if kind is cls or (cls is np.generic and isinstance(value, cls) and value.dtype.kind in "biufcmMSU"):
            return {"$": name, **_encode(_checked_fields(to_fields, value, path), path, arrays)}
    if (name := record_name(kind)) in RECORDS and RECORDS[name].cls is kind:
        return {"$": "record", "of": name, "v": _encode(_record_fields(value), path, arrays)}
    raise ConfigError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved. Define state() and restore() on "
        "the object that holds it, or register its class as a record (raceway.state.record)."
    )


def _checked_fields(to_fields: Callable[[Any], dict[str, Any]], value: Any, path: str) -> dict[str, Any]:
    """Return the fields of a value, with its path in the error if it cannot be saved."""
    try:
        return to_fields(value)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be saved: {error}") from error


def _array_names(path: str) -> Iterator[str]:
    """Yield candidate names for an array: its path, then numbered ones, as the keys `a/b` and `a`, `b` would clash."""
    yield path
    for number in itertools.count(2):
        yield f"{path}#{number}"


def _record_fields(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    names = value._fields if hasattr(value, "_fields") else [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}


def _pairs(value: Any) -> Any:
    return {"v": [[key, part] for key, part in value.items()]}


# For each kind: its class, the fields to write for a value, and how to create the value from these fields.
_KINDS: dict[str, tuple[type, Callable[[Any], dict[str, Any]], Callable[..., Any]]] = {
    "tuple": (tuple, lambda value: {"v": list(value)}, lambda v: tuple(v)),
    "set": (
        set,
        lambda value: {"v": sorted(value, key=lambda item: (type(item).__name__, repr(item)))},
        lambda v: set(v),
    ),
    "deque": (deque, lambda value: {"v": list(value), "maxlen": value.maxlen}, lambda v, maxlen: deque(v, maxlen)),
    "dict": (dict, _pairs, lambda v: {key: part for key, part in v}),  # noqa: C416
    "bytes": (bytes, lambda value: {"v": base64.b64encode(value).decode()}, lambda v: base64.b64decode(v)),
    "int": (int, lambda value: {"v": hex(value)}, lambda v: int(v, 16)),
    "float": (float, lambda value: {"v": repr(value)}, lambda v: float(v)),
    "fraction": (Fraction, lambda value: {"v": str(value)}, lambda v: _fraction(v)),
    "scalar": (np.generic, lambda value: _scalar_parts(value), lambda dtype, v: _scalar(dtype, v)),
    "generator": (np.random.Generator, lambda value: {"v": _generator_state(value)}, lambda v: _generator(v)),
}
_BIT_GENERATORS = {"PCG64": np.random.PCG64, "MT19937": np.random.MT19937, "Philox": np.random.Philox}


def _fraction(text: str) -> Fraction:
    if re.fullmatch(r"-?\d+(/\d+)?", text) is None:  # an exponent could mean more digits than fit into memory
        raise ValueError(f"{text[:40]!r} is not a fraction")
    return Fraction(text)


def _scalar_parts(value: np.generic) -> dict[str, Any]:
    """Return a NumPy scalar as a Python number or text where that is exact, else as its bytes."""
    exact = value.dtype.kind in "biufSU" and not isinstance(value, np.longdouble)
    return {"dtype": value.dtype.str, "v": value.item() if exact else {"raw": value.tobytes()}}


_PYTHON_TYPES = {"b": bool, "i": int, "u": int, "f": float, "S": bytes, "U": str}
"""The Python type that a scalar is written as, by the kind of its dtype. NumPy would convert any other silently."""


def _scalar(dtype: Any, value: Any) -> Any:
    if not isinstance(dtype, str) or re.fullmatch(r"[<>|=]?[a-zA-Z]+\d*(\[\w+\])?", dtype) is None:
        raise ValueError(f"{dtype!r} is not the dtype of a scalar")
    scalar_dtype = np.dtype(dtype)
    if scalar_dtype.kind not in "biufcmMSU":
        raise ValueError(f"{dtype!r} is not the dtype of a scalar")
    if isinstance(value, dict):
        return np.frombuffer(value["raw"], scalar_dtype)[0]
    if type(value) is not _PYTHON_TYPES.get(scalar_dtype.kind):
        raise ValueError(f"a {type(value).__name__} is not a scalar of dtype {dtype!r}")
    return scalar_dtype.type(value)


def _generator_state(value: np.random.Generator) -> Any:
    name = type(value.bit_generator).__name__
    if name not in _BIT_GENERATORS:
        raise ConfigError(f"it is a random generator with the bit generator {name}. Use numpy.random.default_rng.")
    return value.bit_generator.state


def _generator(state: Any) -> np.random.Generator:
    bit_generator = _BIT_GENERATORS[state["bit_generator"]]()
    # Positions in the generator's buffers. NumPy does not check them, and would read beyond the end.
    for position, size in ((state["state"].get("pos", 0), 624), (state.get("buffer_pos", 0), 4)):
        if not 0 <= position <= size:
            raise ValueError(f"position {position} is outside a generator's buffer of {size} numbers")
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def decode(doc: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the tree that `encode` was called with.

    >>> decode(*encode({"seen": (1, 2.5), 3: deque([1], 2)}))
    {'seen': (1, 2.5), 3: deque([1], maxlen=2)}
    """
    if isinstance(doc, list):
        return [decode(part, arrays) for part in doc]
    if not isinstance(doc, dict):
        return doc
    if "$" not in doc:
        return {key: decode(part, arrays) for key, part in doc.items()}
    kind, rest = doc["$"], {key: part for key, part in doc.items() if key != "$"}
    if kind == "array":
        return arrays[rest["v"]]
    if kind == "record":
        entry = find_record(rest["of"])
        cls: Any = entry.cls
        fields = decode(rest["v"], arrays)
        if issubclass(cls, Mapping):
            return cls(fields)
        return cls(**{entry.renamed.get(name, name): value for name, value in fields.items()})
    return _KINDS[kind][2](**{key: decode(part, arrays) for key, part in rest.items()})


def hash_state(doc: Any, hashes: Mapping[str, str]) -> str:
    """Return a hash of a whole state, from its JSON and the hashes of its arrays.

    Wall-clock times and worker names are left out.
    """
    hashed = _without_wall_clock(doc)
    text = json.dumps([hashed, {name: hashes[name] for name in _array_references(hashed)}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_array(array: Array) -> str:
    """Return a hash of an array: its dtype, shape and values."""
    sha256 = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    sha256.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return sha256.hexdigest()


def _without_wall_clock(doc: Any) -> Any:
    if isinstance(doc, list):
        return [_without_wall_clock(part) for part in doc]
    if not isinstance(doc, dict):
        return doc
    if doc.get("$") == "dict":
        return {**doc, "v": [_without_wall_clock(pair) for pair in doc["v"] if pair[0] != WALL_CLOCK_KEY]}
    if doc.get("$") == "record":
        excluded = find_record(doc["of"]).wall_clock
        return {**doc, "v": {key: _without_wall_clock(part) for key, part in doc["v"].items() if key not in excluded}}
    return {key: _without_wall_clock(part) for key, part in doc.items() if key != WALL_CLOCK_KEY}


def _array_references(doc: Any) -> Iterator[str]:
    """Yield the names of the arrays that an encoded state refers to."""
    if isinstance(doc, dict) and doc.get("$") == "array":
        yield doc["v"]
    elif isinstance(doc, (dict, list)):
        for part in doc.values() if isinstance(doc, dict) else doc:
            yield from _array_references(part)


def differences(left: Any, right: Any, path: str = "state") -> Iterator[str]:
    """Yield where two encoded states differ, for finding state that was not saved or restored."""
    left, right = (_without_wall_clock(left), _without_wall_clock(right)) if path == "state" else (left, right)
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        for key in left:
            yield from differences(left[key], right[key], f"{path}/{key}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for index, parts in enumerate(zip(left, right, strict=True)):
            yield from differences(*parts, f"{path}/{index}")
    elif left != right:
        yield f"{path}: {left!r} and {right!r}"
