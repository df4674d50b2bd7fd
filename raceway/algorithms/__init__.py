"""The algorithms: one file each. `find_algorithm` returns one by its name."""

from raceway.algorithms.config import AlgorithmConfig
from raceway.algorithms.context import Context
from raceway.algorithms.registry import ACTIONS, Algorithm, algorithm, algorithm_names, find_algorithm

__all__ = [
    "ACTIONS",
    "Algorithm",
    "AlgorithmConfig",
    "Context",
    "algorithm",
    "algorithm_names",
    "find_algorithm",
]
