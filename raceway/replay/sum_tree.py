"""Numbers that change, and the place at which their running sum passes a value.

A tree of two levels, for numpy: the numbers in blocks, and the sum of every block. With so few levels a whole batch is
looked for in a dozen calls: twice as fast as with sixteen children a node and as many levels as that takes. A binary
one in C++, as TorchRL has, is faster still, but its extension loads with one version of torch only, and what is around
it takes longer than both; benchmarks/replay.py compares.
"""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray

_SMALLEST = 32  # numbers of a block


class SumTree:
    """So many numbers that are not negative, at first 0."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._block = max(_SMALLEST, math.isqrt(capacity) // 16)
        self._rows = np.zeros((-(-capacity // self._block), self._block))
        self._flat = self._rows.reshape(-1)
        self._sums = np.zeros(len(self._rows))

    @property
    def values(self) -> Array:
        """The numbers. They are changed with `put`."""
        return self._flat[: self.capacity]

    @property
    def total(self) -> float:
        """Their sum."""
        return float(self._sums.sum())

    def put(self, places: Array, values: Array | float) -> None:
        """Change the numbers at some places."""
        self._flat[places] = values
        blocks = places // self._block
        self._sums[blocks] = self._rows[blocks].sum(1)  # anew, so that no error adds up

    def find(self, targets: Array) -> Array:
        """Return for every target the first place up to which the numbers sum to more.

        >>> tree = SumTree(3)
        >>> tree.put(np.arange(3), np.array([1.0, 0.0, 2.0]))
        >>> tree.find(np.array([0.0, 0.9, 1.0, 2.9]))
        array([0, 0, 2, 2])
        """
        before = np.cumsum(self._sums)
        blocks = np.searchsorted(before, targets, side="right")
        if blocks.max(initial=0) == len(before):  # by rounding: the last block that is not 0 is meant
            np.minimum(blocks, np.flatnonzero(self._sums)[-1], out=blocks)
        before -= self._sums
        rows = self._rows[blocks]
        left = np.maximum(targets - before[blocks], 0)  # by rounding it can be below
        found = (rows.cumsum(1) <= left[:, None]).sum(1)
        beyond = found == self._block
        if beyond.any():
            found[beyond] = self._block - 1 - (rows[beyond, ::-1] > 0).argmax(1)
        return blocks * self._block + found
