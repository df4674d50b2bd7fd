"""A sum tree: holds values, and finds the index at which their cumulative sum exceeds a target.

The tree has two levels, for numpy: the values in blocks, and the sum of every block. With so few levels, a dozen
calls look up a whole batch of targets: twice as fast as with sixteen children per node and more levels.
TorchRL's binary tree in C++ is faster still, but its extension loads with one version of torch only, and the code
around it takes longer than either tree; benchmarks/replay.py compares.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray

_MIN_BLOCK = 32  # values in a block


class SumTree:
    """Holds `capacity` values that are not negative, initially 0."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._block = max(_MIN_BLOCK, math.isqrt(capacity) // 16)
        self._rows = np.zeros((-(-capacity // self._block), self._block))
        self._flat = self._rows.reshape(-1)
        self._sums = np.zeros(len(self._rows))

    @property
    def values(self) -> Array:
        """The values, read-only; `put` changes them."""
        return self._flat[: self.capacity]

    @property
    def total(self) -> float:
        """The sum of all values."""
        return float(self._sums.sum())

    def put(self, index: Array, values: Array | float) -> None:
        """Set the values at these indices."""
        self._flat[index] = values
        blocks = index // self._block
        self._sums[blocks] = self._rows[blocks].sum(1)  # summed again, so that rounding errors do not add up

    def find(self, targets: Array) -> Array:
        """Return, for every target, the first index at which the cumulative sum of the values exceeds it.

        >>> tree = SumTree(3)
        >>> tree.put(np.arange(3), np.array([1.0, 0.0, 2.0]))
        >>> tree.find(np.array([0.0, 0.9, 1.0, 2.9]))
        array([0, 0, 2, 2])
        """
        before = np.cumsum(self._sums)
        blocks = np.searchsorted(before, targets, side="right")
        if blocks.max(initial=0) == len(before):  # by rounding: take the last block that is not 0
            np.minimum(blocks, np.flatnonzero(self._sums)[-1], out=blocks)
        before -= self._sums
        rows = self._rows[blocks]
        rest = np.maximum(targets - before[blocks], 0)  # by rounding it can be below 0
        offsets = (rows.cumsum(1) <= rest[:, None]).sum(1)
        beyond = offsets == self._block
        if beyond.any():
            offsets[beyond] = self._block - 1 - (rows[beyond, ::-1] > 0).argmax(1)
        return blocks * self._block + offsets
