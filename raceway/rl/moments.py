"""Sums of a column over several processes, by which each of them standardises its own rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

Array = np.ndarray


class Moments(NamedTuple):
    """The number of values xᵢ, Σ xᵢ and Σ xᵢ²."""

    num: int
    total: float
    squares: float

    @classmethod
    def of(cls, column: Array) -> Moments:
        """Return the moments of the values of an array.

        >>> Moments.of(np.array([1.0, 3.0]))
        Moments(num=2, total=4.0, squares=10.0)
        """
        values = np.asarray(column, np.float64).ravel()
        return cls(values.size, float(values.sum()), float(values @ values))

    @classmethod
    def merge(cls, parts: Iterable[Moments]) -> Moments:
        """Return the moments of all values together, added in the order of the parts.

        >>> Moments.merge([Moments(2, 4.0, 10.0), Moments(1, 5.0, 25.0)])
        Moments(num=3, total=9.0, squares=35.0)
        """
        num, total, squares = 0, 0.0, 0.0
        for part in parts:
            num, total, squares = num + part.num, total + part.total, squares + part.squares
        return cls(num, total, squares)

    def standardise(self, column: Array, epsilon: float = 1e-8) -> Array:
        """Return (x - mean) / (deviation + ε), by the mean and the standard deviation of these moments.

        Rows that are standardised by the moments of all rows are those that they would be in one batch.

        >>> Moments(2, 4.0, 10.0).standardise(np.array([1.0, 5.0]), epsilon=0.0).tolist()
        [-1.0, 3.0]
        """
        mean = self.total / max(self.num, 1)
        variance = max(self.squares / max(self.num, 1) - mean**2, 0.0)
        return ((np.asarray(column, np.float64) - mean) / (variance**0.5 + epsilon)).astype(column.dtype)
