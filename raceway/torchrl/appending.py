"""Appending to a storage from anywhere in a run. This needs no TorchRL, whose import takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from raceway.errors import ConfigError
from raceway.runner import ObjectRef, patch_object

Columns = dict[tuple[str, ...], np.ndarray]
"""A batch, flat: arrays with one row an item, by the path of their names. A bare array has the empty path."""


class Patch(NamedTuple):
    """What one append adds to an object."""

    columns: Columns
    order: int


class Appender:
    """Appends to the object behind an `ObjectStorage`; small enough to be sent to every worker.

    Args:
        ref: the object.
    """

    def __init__(self, ref: ObjectRef) -> None:
        self.ref = ref

    def append(self, batch: Any, order: int = 0) -> int:
        """Append the rows of a batch together, and return how many they are.

        Args:
            batch: arrays or tensors with one leading axis, in a mapping that may be nested, or whose names may be
                tuples; or one array.
            order: a reader takes in what is new to it in this order, and by arrival where it is the same. So workers
                that append at the same time can leave the same buffer behind in every run.
        """
        columns = columns_of(batch)
        size = num_rows(columns)
        patch_object(self.ref, Patch(columns, order), size)
        return size


def columns_of(batch: Any) -> Columns:
    """Return the columns of a batch by their paths.

    >>> columns_of({"obs": np.zeros(2), "next": {"obs": np.ones(2)}, ("next", "reward"): np.ones(2)}).keys()
    dict_keys([('obs',), ('next', 'obs'), ('next', 'reward')])
    """
    found: Columns = {}
    _collect(batch, (), found)
    return found


def _collect(part: Any, path: tuple[str, ...], found: Columns) -> None:
    if isinstance(part, Mapping):  # a TensorDict is one too
        for name, inner in part.items():
            _collect(inner, path + (name if isinstance(name, tuple) else (name,)), found)
        return
    try:
        found[path] = part.detach().cpu().numpy() if hasattr(part, "detach") else np.asarray(part)
    except TypeError as error:
        raise ConfigError(
            f"column {shown(path)} cannot be stored: {error}. Convert it to a type of numpy's."
        ) from error
    if found[path].dtype.hasobject or found[path].dtype.kind in "SUV":
        raise ConfigError(f"column {shown(path)} cannot be stored: {type(part).__name__} is no array of numbers")


def num_rows(columns: Columns) -> int:
    """Return how many rows the columns have, which must be the same for all, and some.

    >>> num_rows({("obs",): np.zeros((3, 2)), ("reward",): np.zeros(3)})
    3
    """
    lengths = {path: len(column) if column.ndim else -1 for path, column in columns.items()}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        rows = ", ".join(f"{shown(path)} {length if length >= 0 else 'no'}" for path, length in lengths.items())
        raise ConfigError(f"a batch needs columns of one length from 1, and these have rows: {rows or 'no column'}")
    return next(iter(lengths.values()))


def shown(path: tuple[str, ...]) -> str:
    """Return the name of a column for a message."""
    return repr(".".join(map(str, path))) if path else "(the only one)"
