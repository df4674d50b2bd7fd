"""States as data: a tree of values becomes JSON and named arrays, and back. Nothing is ever pickled.

What is neither JSON nor an array is written as `{"$": kind, ...}`. A file can only name kinds that are listed here, or
classes that are registered as records: reading one makes values, and never runs or imports what it says.
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

record(wall_clock=("begun", "done"), formerly=("Envelope",))(Envelope)
record(wall_clock=("name",), formerly=("Source",))(Source)
record(formerly=("Counter",))(Counter)

WALL = "wall"
"""What a mapping has under this name is of the clock too."""
_LONG = 1000
"""Bits of a number from which its digits are not written: Python refuses to read very many."""


def encode(value: Any, path: str = "state") -> tuple[Any, Arrays]:
    """Return a tree as JSON, and its arrays by where they stood in it.

    >>> encode({"steps": 3, "x": np.arange(2), "seen": (1, 2.5)})[0]
    {'steps': 3, 'x': {'$': 'array', 'v': 'state/x'}, 'seen': {'$': 'tuple', 'v': [1, 2.5]}}
    """
    arrays: Arrays = {}
    return _encoded(value, path, arrays), arrays


def _encoded(value: Any, path: str, arrays: Arrays) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str) or (kind is int and value.bit_length() < _LONG):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$": "float", "v": repr(value)}
    if kind is list:
        return [_encoded(part, f"{path}/{place}", arrays) for place, part in enumerate(value)]
    if kind is dict and all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encoded(part, f"{path}/{key}", arrays) for key, part in value.items()}
    if kind is np.ndarray and value.dtype.kind in "biufcmM":
        place = next(name for name in _places(path) if name not in arrays)
        arrays[place] = value
        return {"$": "array", "v": place}
    for name, (cls, take, _) in _KINDS.items():
        if kind is cls or (cls is np.generic and isinstance(value, cls) and value.dtype.kind in "biufcmMSU"):
            return {"$": name, **_encoded(_taken(take, value, path), path, arrays)}
    if (name := record_name(kind)) in RECORDS and RECORDS[name].cls is kind:
        return {"$": "record", "of": name, "v": _encoded(_fields(value), path, arrays)}
    raise ConfigError(
        f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved. Give what holds it a state() and a "
        "restore(), or make it a record (raceway.state.record)."
    )


def _taken(take: Callable[[Any], dict[str, Any]], value: Any, path: str) -> dict[str, Any]:
    try:
        return take(value)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be saved: {error}") from error


def _places(path: str) -> Iterator[str]:
    """Yield names for an array: where it stands, but the keys `a/b` and `a`, `b` in it would give the same."""
    yield path
    for number in itertools.count(2):
        yield f"{path}#{number}"


def _fields(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    names = value._fields if hasattr(value, "_fields") else [one.name for one in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in names}


def _pairs(value: Any) -> Any:
    return {"v": [[key, part] for key, part in value.items()]}


# Of every kind: its class, what is written of a value, and how that becomes one again.
_KINDS: dict[str, tuple[type, Callable[[Any], dict[str, Any]], Callable[..., Any]]] = {
    "tuple": (tuple, lambda value: {"v": list(value)}, lambda v: tuple(v)),
    "set": (set, lambda value: {"v": sorted(value, key=lambda one: (type(one).__name__, repr(one)))}, lambda v: set(v)),
    "deque": (deque, lambda value: {"v": list(value), "maxlen": value.maxlen}, lambda v, maxlen: deque(v, maxlen)),
    "dict": (dict, _pairs, lambda v: {key: part for key, part in v}),  # noqa: C416
    "bytes": (bytes, lambda value: {"v": base64.b64encode(value).decode()}, lambda v: base64.b64decode(v)),
    "int": (int, lambda value: {"v": hex(value)}, lambda v: int(v, 16)),
    "float": (float, lambda value: {"v": repr(value)}, lambda v: float(v)),
    "fraction": (Fraction, lambda value: {"v": str(value)}, lambda v: _fraction(v)),
    "scalar": (np.generic, lambda value: _scalar_parts(value), lambda dtype, v: _scalar(dtype, v)),
    "generator": (np.random.Generator, lambda value: {"v": _named_state(value)}, lambda v: _generator(v)),
}
_BIT_GENERATORS = {"PCG64": np.random.PCG64, "MT19937": np.random.MT19937, "Philox": np.random.Philox}


def _fraction(text: str) -> Fraction:
    if re.fullmatch(r"-?\d+(/\d+)?", text) is None:  # an exponent could stand for more digits than there is memory
        raise ValueError(f"{text[:40]!r} is no fraction")
    return Fraction(text)


def _scalar_parts(value: np.generic) -> dict[str, Any]:
    """Return a scalar of numpy as a number or text if Python has such, else as its bytes."""
    exact = value.dtype.kind in "biufSU" and not isinstance(value, np.longdouble)
    return {"dtype": value.dtype.str, "v": value.item() if exact else {"raw": value.tobytes()}}


_ITEMS = {"b": bool, "i": int, "u": int, "f": float, "S": bytes, "U": str}
"""What a scalar is written as, by the kind of its type. Of another, numpy would make what nobody wrote."""


def _scalar(dtype: Any, value: Any) -> Any:
    if not isinstance(dtype, str) or re.fullmatch(r"[<>|=]?[a-zA-Z]+\d*(\[\w+\])?", dtype) is None:
        raise ValueError(f"{dtype!r} is no type of a number")
    found = np.dtype(dtype)
    if found.kind not in "biufcmMSU":
        raise ValueError(f"{dtype!r} is no type of a number")
    if isinstance(value, dict):
        return np.frombuffer(value["raw"], found)[0]
    if type(value) is not _ITEMS.get(found.kind):
        raise ValueError(f"a {type(value).__name__} is no scalar of {dtype!r}")
    return found.type(value)


def _named_state(value: np.random.Generator) -> Any:
    name = type(value.bit_generator).__name__
    if name not in _BIT_GENERATORS:
        raise ConfigError(f"it is a random generator of {name}. Use numpy.random.default_rng.")
    return value.bit_generator.state


def _generator(state: Any) -> np.random.Generator:
    bits = _BIT_GENERATORS[state["bit_generator"]]()
    # Where it is in its numbers. numpy takes whatever this says, and would read beyond them.
    for place, most in ((state["state"].get("pos", 0), 624), (state.get("buffer_pos", 0), 4)):
        if not 0 <= place <= most:
            raise ValueError(f"a generator cannot be at {place} of {most} numbers")
    bits.state = state
    return np.random.Generator(bits)


def decode(doc: Any, arrays: Mapping[str, Array]) -> Any:
    """Return the tree that was encoded.

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


def digest(doc: Any, hashes: Mapping[str, str]) -> str:
    """Return a hash of a whole state, by its JSON and the hashes of its arrays.

    Wall times do not count, nor do the names of workers.
    """
    counted = _timeless(doc)
    text = json.dumps([counted, {name: hashes[name] for name in _arrays_of(counted)}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of(array: Array) -> str:
    """Return a hash of an array: its type, shape and values."""
    made = hashlib.sha256(f"{array.dtype.str} {array.shape} ".encode())
    made.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return made.hexdigest()


def _timeless(doc: Any) -> Any:
    if isinstance(doc, list):
        return [_timeless(part) for part in doc]
    if not isinstance(doc, dict):
        return doc
    if doc.get("$") == "dict":
        return {**doc, "v": [_timeless(pair) for pair in doc["v"] if pair[0] != WALL]}
    if doc.get("$") == "record":
        left_out = find_record(doc["of"]).wall_clock
        return {**doc, "v": {key: _timeless(part) for key, part in doc["v"].items() if key not in left_out}}
    return {key: _timeless(part) for key, part in doc.items() if key != WALL}


def _arrays_of(doc: Any) -> Iterator[str]:
    """Yield the names of the arrays that a document refers to."""
    if isinstance(doc, dict) and doc.get("$") == "array":
        yield doc["v"]
    elif isinstance(doc, (dict, list)):
        for part in doc.values() if isinstance(doc, dict) else doc:
            yield from _arrays_of(part)


def differences(one: Any, other: Any, path: str = "state") -> Iterator[str]:
    """Yield where two encoded states differ: for whoever looks for what was forgotten."""
    one, other = (_timeless(one), _timeless(other)) if path == "state" else (one, other)
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key in one:
            yield from differences(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, parts in enumerate(zip(one, other, strict=True)):
            yield from differences(*parts, f"{path}/{place}")
    elif one != other:
        yield f"{path}: {one!r} and {other!r}"
