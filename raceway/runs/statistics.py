"""Statistics over several runs, as recommended by Agarwal et al. 2021 (https://arxiv.org/abs/2108.13264)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np


def interquartile_mean(values: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the middle half; a value that straddles a quartile counts by its part inside.

    >>> interquartile_mean([0, 1, 2, 100])
    1.5
    """
    ordered = np.sort(np.asarray(values, float))
    edges = np.arange(len(ordered) + 1) / len(ordered)
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float((ordered * weights).sum() / weights.sum())


def bootstrap_interval(
    values: Sequence[float] | np.ndarray,
    statistic: Callable[[np.ndarray], float] = interquartile_mean,
    *,
    level: float = 0.95,
    num_samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a statistic: `num_samples` resamples, with replacement.

    >>> bootstrap_interval([5.0, 5.0, 5.0])
    (5.0, 5.0)
    """
    observed = np.asarray(values, float)
    resamples = np.random.default_rng(seed).choice(observed, (num_samples, len(observed)))
    statistics = [statistic(sample) for sample in resamples]
    low, high = np.quantile(statistics, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def probability_of_improvement(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Return P(X > Y): the share of all pairs in which x is higher; a tie counts as half.

    >>> probability_of_improvement([3, 5], [1, 3, 4])  # 1.5 and 3 of three pairs each
    0.75
    """
    first, second = np.asarray(x, float)[:, None], np.asarray(y, float)
    return float(_wins(first, second).mean())


def improvement_interval(
    x: Sequence[float] | np.ndarray,
    y: Sequence[float] | np.ndarray,
    *,
    level: float = 0.95,
    num_samples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of P(X > Y), with both x and y resampled.

    >>> improvement_interval([2, 3], [0, 1])
    (1.0, 1.0)
    """
    first, second = np.asarray(x, float), np.asarray(y, float)
    random, wins = np.random.default_rng(seed), _wins(first[:, None], second)
    rows = random.integers(len(first), size=(num_samples, len(first)))
    columns = random.integers(len(second), size=(num_samples, len(second)))
    probabilities = [wins[np.ix_(row, column)].mean() for row, column in zip(rows, columns, strict=True)]
    low, high = np.quantile(probabilities, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _wins(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first > second) + 0.5 * (first == second)
