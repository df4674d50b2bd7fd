"""A ring buffer of rows: arrays of fixed length that are overwritten from the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.rl.batch import Batch, tree_map

Array = np.ndarray


class ReplayStorage:
    """Holds the columns of batches, each as an array of `capacity` rows."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.arrays: Batch = {}

    def write(self, batch: Batch, number: int) -> None:
        """Write the rows of a batch, at most `capacity`; `number` is the number of the first row."""
        if not self.arrays:
            self.arrays = self._empty(batch)
        check_columns(self.arrays, batch)
        begin, num = number % self.capacity, common_length(batch)
        fits = min(num, self.capacity - begin)  # rows before the end of the ring

        def write(column: Array, rows: Array) -> None:
            column[begin : begin + fits] = rows[:fits]
            column[: num - fits] = rows[fits:]

        tree_map(write, self.arrays, batch)

    def _empty(self, like: Batch) -> Batch:
        return tree_map(lambda part: np.zeros((self.capacity, *part.shape[1:]), part.dtype), like)

    def read(self, positions: Array) -> Batch:
        """Return the rows at these positions in the ring."""
        return tree_map(lambda column: column.take(positions, axis=0), self.arrays)

    def first_complete(self, first: int, end: int) -> int:
        """Return the number of the first row in [first, end) that is completely stored."""
        return first

    def state(self, used: int) -> Any:
        """Return the first `used` rows."""
        return {"arrays": tree_map(lambda column: column[:used].copy(), self.arrays)}

    def restore(self, state: Any, used: int) -> None:
        """Restore a state of `used` rows."""
        self.arrays = self._empty(state["arrays"])
        tree_map(lambda column, part: np.copyto(column[:used], part), self.arrays, state["arrays"])


def common_length(batch: Batch) -> int:
    """Return the number of rows of a batch. Raise ConfigError if its columns have different lengths."""
    sizes = {len(column) for column in _leaves(batch)}
    if len(sizes) != 1:
        raise ConfigError(
            f"the columns of a replay batch must have the same length, not {sorted(sizes)}: {list(batch)}"
        )
    return sizes.pop()


def _leaves(tree: Any) -> list[Array]:
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]


def check_columns(columns: Any, batch: Any, name: str = "") -> None:
    """Raise ConfigError if rows do not fit the stored columns: numpy would silently broadcast or round them."""
    if isinstance(columns, Mapping):
        if not isinstance(batch, Mapping) or columns.keys() != batch.keys():
            actual = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ConfigError(f"the replay buffer has the columns {list(columns)}{name}, but the batch has {actual}")
        for key in columns:
            check_columns(columns[key], batch[key], f" of {key!r}")
    elif columns.shape[1:] != batch.shape[1:] or columns.dtype != batch.dtype:
        raise ConfigError(
            f"the replay buffer has rows{name} of shape {columns.shape[1:]} and type {columns.dtype}, but the batch "
            f"has shape {batch.shape[1:]} and type {batch.dtype}"
        )
