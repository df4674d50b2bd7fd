"""The catalogue: one file a paper. `find_algorithm` has them by name."""

from raceway.algorithms.base import (
    ACTIONS,
    Algorithm,
    AlgorithmConfig,
    Context,
    algorithm,
    algorithm_names,
    find_algorithm,
)

__all__ = [
    "ACTIONS",
    "Algorithm",
    "AlgorithmConfig",
    "Context",
    "algorithm",
    "algorithm_names",
    "find_algorithm",
]
