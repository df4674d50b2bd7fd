"""Evolution strategies: estimates of a gradient from returns of perturbed weights, without the gradient of a loss.

A direction ε is a vector of normal noise, as long as the weights θ. Its pair of episodes has the returns of θ + σ ε and
θ - σ ε, [P, 2] for P directions. What an algorithm makes of them is a coefficient c for each direction, so that the
estimate is Σ c ε.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Array = np.ndarray


def direction_noise(seed: int, direction: int, size: int) -> Array:
    """Return the normal noise ε of a direction, [size].

    The generator counts (Philox, Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405), with the seed and the
    number of the direction as its key. So whoever knows both has the noise, and no table of it is stored or sent.

    >>> bool((direction_noise(0, 7, 4) == direction_noise(0, 7, 6)[:4]).all())
    True
    """
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, direction], np.uint64)))
    return generator.standard_normal(size, np.float32)


def centred_ranks(values: Array) -> Array:
    """Return the ranks of values, of any shape, evenly spaced from -1/2 for the lowest to 1/2 for the highest.

    Wierstra et al. 2014, https://arxiv.org/abs/1106.4487, section 3.1; Salimans et al. 2017,
    https://arxiv.org/abs/1703.03864, section 2.1. Equal values share the mean of their ranks, so that nothing depends
    on their order.

    >>> centred_ranks(np.array([10.0, 30.0, 20.0, 20.0, 0.0])).tolist()
    [-0.25, 0.5, 0.125, 0.125, -0.5]
    """
    flat = np.ravel(values)
    _, index, counts = np.unique(flat, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)  # the rank of the last of each group of equal values, from 1
    ranks = (last - (counts + 1) / 2)[np.ravel(index)]
    return (ranks / max(len(flat) - 1, 1) - (0.5 if len(flat) > 1 else 0.0)).reshape(np.shape(values))


def es_coefficients(returns: Array, sigma: float) -> Array:
    """Return c = (u⁺ - u⁻) / (2 P σ) of each direction, [P], with the centred ranks u of the returns, [P, 2].

    Σ c ε estimates the gradient of the expected utility. Salimans et al. 2017, https://arxiv.org/abs/1703.03864,
    algorithm 1, with ranks and mirrored sampling.

    >>> es_coefficients(np.array([[1.0, 0.0], [3.0, 2.0]]), sigma=0.5).round(3).tolist()
    [0.167, 0.167]
    """
    utilities = centred_ranks(returns)
    return (utilities[:, 0] - utilities[:, 1]) / (returns.size * sigma)


def ars_coefficients(returns: Array, num_top: int) -> Array:
    """Return c = (r⁺ - r⁻) / (b σ_R) of the b best directions, and 0 of the others, [P], for returns [P, 2].

    A direction is as good as the better of its two returns; the earlier one comes first where they are equal. σ_R is
    the standard deviation of the 2b returns that are used. If they are all equal there is no step. Mania et al. 2018,
    https://arxiv.org/abs/1803.07055, algorithm 2.

    >>> ars_coefficients(np.array([[1.0, 3.0], [0.0, 0.0], [5.0, 3.0]]), num_top=2).round(3).tolist()
    [-0.707, 0.0, 0.707]
    """
    top = np.argsort(-returns.max(1), kind="stable")[:num_top]
    deviation = returns[top].std()
    coefficients = np.zeros(len(returns))
    if deviation > 0:
        coefficients[top] = (returns[top, 0] - returns[top, 1]) / (len(top) * deviation)
    return coefficients


def sum_of_directions(coefficients: Iterable[float], directions: Iterable[int], seed: int, size: int) -> Array:
    """Return Σ c ε, [size], summed in the order of the directions. Directions with a coefficient of 0 take no time."""
    total = np.zeros(size, np.float32)
    for coefficient, direction in zip(coefficients, directions, strict=True):
        if coefficient:
            total += np.float32(coefficient) * direction_noise(seed, int(direction), size)
    return total
