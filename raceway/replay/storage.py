"""A ring of rows: arrays of a fixed length that are written over from the beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.rl.batch import Batch, tree_map

Array = np.ndarray


class ReplayStorage:
    """The columns of batches, each an array of `capacity` rows."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.arrays: Batch = {}

    def write(self, batch: Batch, number: int) -> None:
        """Put in the rows of a batch, at most `capacity`, of which the first has this number."""
        if not self.arrays:
            self.arrays = self._empty(batch)
        check_columns(self.arrays, batch)
        place, num = number % self.capacity, num_rows(batch)
        fits = min(num, self.capacity - place)

        def write(column: Array, rows: Array) -> None:
            column[place : place + fits] = rows[:fits]
            column[: num - fits] = rows[fits:]

        tree_map(write, self.arrays, batch)

    def _empty(self, like: Batch) -> Batch:
        return tree_map(lambda part: np.zeros((self.capacity, *part.shape[1:]), part.dtype), like)

    def read(self, places: Array) -> Batch:
        """Return the rows at some places."""
        return tree_map(lambda column: column.take(places, axis=0), self.arrays)

    def first_whole(self, first: int, end: int) -> int:
        """Return the number of the first row, from one to another, of which everything is still there."""
        return first

    def state(self, used: int) -> Any:
        """Return what the first rows hold."""
        return {"arrays": tree_map(lambda column: column[:used].copy(), self.arrays)}

    def restore(self, state: Any, used: int) -> None:
        """Hold that."""
        self.arrays = self._empty(state["arrays"])
        tree_map(lambda column, part: np.copyto(column[:used], part), self.arrays, state["arrays"])


def num_rows(batch: Batch) -> int:
    """Return how many rows the columns of a batch have."""
    sizes = {len(column) for column in _leaves(batch)}
    if len(sizes) != 1:
        raise ConfigError(f"the columns of a batch for replay have one length, not {sorted(sizes)}: {list(batch)}")
    return sizes.pop()


def _leaves(tree: Any) -> list[Array]:
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]


def check_columns(columns: Any, batch: Any, name: str = "") -> None:
    """Refuse rows that do not fit beside those that are there: numpy would repeat or round them without a word."""
    if isinstance(columns, Mapping):
        if not isinstance(batch, Mapping) or columns.keys() != batch.keys():
            shown = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ConfigError(f"replay holds the columns {list(columns)}{name}, and these are {shown}")
        for key in columns:
            check_columns(columns[key], batch[key], f" of {key!r}")
    elif columns.shape[1:] != batch.shape[1:] or columns.dtype != batch.dtype:
        raise ConfigError(
            f"replay holds rows{name} of shape {columns.shape[1:]} and type {columns.dtype}, and these are of shape "
            f"{batch.shape[1:]} and type {batch.dtype}"
        )
