"""Appending to a storage from any process of a run. This module does not import TorchRL, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from raceway.errors import ConfigError
from raceway.runner import ObjectRef, patch_object

FlatBatch = dict[tuple[str, ...], np.ndarray]
"""The columns of a batch by their path of names; all have the same number of rows. A bare array has the empty path."""


class AppendedBatch(NamedTuple):
    """The patch that one append adds to an object."""

    columns: FlatBatch
    order: int


class Appender:
    """Appends to the object behind an `ObjectStorage`; small enough to be sent to every worker.

    Args:
        ref: the object.
    """

    def __init__(self, ref: ObjectRef) -> None:
        self.ref = ref

    def append(self, batch: Any, order: int = 0) -> int:
        """Append the rows of a batch as one patch, and return their number.

        Args:
            batch: arrays or tensors with the rows as first axis, in a mapping, which may be nested or have tuples as
                keys; or a single array.
            order: readers sort the patches that are new to them by this number, and by arrival where it is equal. So
                workers that append concurrently can produce the same buffer in every run.
        """
        columns = flatten_batch(batch)
        num_rows = check_num_rows(columns)
        patch_object(self.ref, AppendedBatch(columns, order), num_rows)
        return num_rows


def flatten_batch(batch: Any) -> FlatBatch:
    """Return the columns of a batch by their paths.

    >>> flatten_batch({"obs": np.zeros(2), "next": {"obs": np.ones(2)}, ("next", "reward"): np.ones(2)}).keys()
    dict_keys([('obs',), ('next', 'obs'), ('next', 'reward')])
    """
    columns: FlatBatch = {}
    _add_columns(batch, (), columns)
    return columns


def _add_columns(part: Any, path: tuple[str, ...], columns: FlatBatch) -> None:
    if isinstance(part, Mapping):  # a TensorDict is a Mapping too
        for name, inner in part.items():
            _add_columns(inner, path + (name if isinstance(name, tuple) else (name,)), columns)
        return
    try:
        columns[path] = part.detach().cpu().numpy() if hasattr(part, "detach") else np.asarray(part)
    except TypeError as error:
        raise ConfigError(
            f"column {format_path(path)} cannot be stored: {error}. Convert it to a numpy type."
        ) from error
    if columns[path].dtype.hasobject or columns[path].dtype.kind in "SUV":
        raise ConfigError(
            f"column {format_path(path)} cannot be stored: {type(part).__name__} is not an array of numbers"
        )


def check_num_rows(columns: FlatBatch) -> int:
    """Return the number of rows, after checking that it is at least 1 and the same in all columns.

    >>> check_num_rows({("obs",): np.zeros((3, 2)), ("reward",): np.zeros(3)})
    3
    """
    lengths = {path: len(column) if column.ndim else -1 for path, column in columns.items()}
    if len(set(lengths.values())) != 1 or min(lengths.values()) < 1:
        rows = ", ".join(f"{format_path(path)} {length if length >= 0 else 'no'}" for path, length in lengths.items())
        raise ConfigError(
            f"the columns of a batch must have the same number of rows, at least 1, not: {rows or 'no column'}"
        )
    return next(iter(lengths.values()))


def format_path(path: tuple[str, ...]) -> str:
    """Return the name of a column for a message."""
    return repr(".".join(map(str, path))) if path else "(unnamed)"
