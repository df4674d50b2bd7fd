"""The algorithms: one file each. `find_algorithm` returns one by its name."""

from raceway.algorithms.config import AlgorithmConfig, TrainingConfig
from raceway.algorithms.context import Context
from raceway.algorithms.registry import ACTIONS, Algorithm, algorithm, algorithm_names, find_algorithm
from raceway.algorithms.sources import DatasetSource, PerturbationSource, RolloutSource, Source

__all__ = [
    "ACTIONS",
    "Algorithm",
    "AlgorithmConfig",
    "Context",
    "DatasetSource",
    "PerturbationSource",
    "RolloutSource",
    "Source",
    "TrainingConfig",
    "algorithm",
    "algorithm_names",
    "find_algorithm",
]
