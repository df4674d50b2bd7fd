"""A tree of sums in numpy: numbers that change, and the place at which their running sum passes a value.

Every node has sixteen children, so that a whole batch goes down a level in a few calls. TorchRL has a binary one in
C++; benchmarks/replay.py compares them.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray

_CHILDREN = 16


class SumTree:
    """So many numbers that are not negative, at first 0."""

    def __init__(self, capacity: int) -> None:
        sizes = [-(-capacity // _CHILDREN)]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // _CHILDREN))
        self._levels = [np.zeros((size, _CHILDREN)) for size in sizes]  # the numbers, sums of them, sums of sums
        self._flat = [level.reshape(-1) for level in self._levels]
        self.capacity = capacity

    @property
    def values(self) -> Array:
        """The numbers. They are changed with `put`."""
        return self._flat[0][: self.capacity]

    @property
    def total(self) -> float:
        """Their sum."""
        return float(self._levels[-1].sum())

    def put(self, places: Array, values: Array | float) -> None:
        """Change the numbers at some places."""
        self._flat[0][places] = values
        for below, above in zip(self._levels, self._flat[1:], strict=False):
            places = places // _CHILDREN
            above[places] = below[places].sum(1)  # anew, so that no error adds up

    def find(self, targets: Array) -> Array:
        """Return for every target the first place up to which the numbers sum to more.

        >>> tree = SumTree(3)
        >>> tree.put(np.arange(3), np.array([1.0, 0.0, 2.0]))
        >>> tree.find(np.array([0.0, 0.9, 1.0, 2.9]))
        array([0, 0, 2, 2])
        """
        left = targets.astype(float)
        places = np.zeros(len(left), np.int64)
        rows = np.arange(len(left))
        for level in reversed(self._levels):
            block = level[places]
            sums = block.cumsum(1)
            found = (sums <= left[:, None]).sum(1)
            beyond = found == _CHILDREN  # by rounding: the last number that is not 0 is meant
            if beyond.any():
                found[beyond] = _CHILDREN - 1 - (block[beyond, ::-1] > 0).argmax(1)
            left -= sums[rows, found] - block[rows, found]
            places = places * _CHILDREN + found
        return places
