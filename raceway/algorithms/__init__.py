"""The catalogue: one file a paper. `find_algorithm` has them by name."""

from raceway.algorithms.base import Algorithm, AlgorithmConfig, Context, algorithm, algorithm_names, find_algorithm

__all__ = ["Algorithm", "AlgorithmConfig", "Context", "algorithm", "algorithm_names", "find_algorithm"]
