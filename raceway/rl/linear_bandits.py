"""Linear bandits: ridge regression of the rewards of each arm, and scores that explore by how much is known.

Every arm has its own model of its reward, xᵀθ, for features x [D]. With A = λI + Σ x xᵀ and b = Σ r x over the times
that it was pulled, θ = A⁻¹ b. Everything is in float64.
"""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def updated_inverse(inverse: Array, features: Array) -> Array:
    """Return (A + x xᵀ)⁻¹ = A⁻¹ - A⁻¹ x xᵀ A⁻¹ / (1 + xᵀ A⁻¹ x), given A⁻¹, [D, D], and x, [D].

    Sherman & Morrison 1950, https://doi.org/10.1214/aoms/1177729893. Its rounding errors add up over many updates.

    >>> updated_inverse(np.eye(2), np.array([1.0, 0.0])).tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """
    product = inverse @ features
    result: Array = inverse - np.outer(product, product) / (1 + features @ product)
    return result


def variances(inverses: Array, features: Array) -> Array:
    """Return xᵀ A⁻¹ x of every arm, [N, K], for A⁻¹ [K, D, D] and x [N, D]; never below 0.

    >>> variances(np.stack([np.eye(2), np.eye(2) / 4]), np.array([[1.0, 2.0]])).tolist()
    [[5.0, 1.25]]
    """
    return np.maximum(np.einsum("nd,kde,ne->nk", features, inverses, features), 0)


def upper_bounds(means: Array, inverses: Array, features: Array, alpha: float) -> Array:
    """Return the upper confidence bounds xᵀθ + α √(xᵀ A⁻¹ x), [N, K], for means [N, K].

    Li et al. 2010, https://arxiv.org/abs/1003.0146, algorithm 1.
    """
    return means + alpha * np.sqrt(variances(inverses, features))


def thompson_samples(
    means: Array, inverses: Array, features: Array, alpha: float, random: np.random.Generator
) -> Array:
    """Return xᵀθ̃ with θ̃ sampled from N(θ, α² A⁻¹) for every arm and row, [N, K], for means [N, K].

    Agrawal & Goyal 2013, https://arxiv.org/abs/1209.3352, algorithm 1, where α is v. Only xᵀθ̃ is needed, which is a
    sample of N(xᵀθ, α² xᵀA⁻¹x).
    """
    return means + alpha * np.sqrt(variances(inverses, features)) * random.standard_normal(means.shape)


def random_argmax(scores: Array, random: np.random.Generator) -> Array:
    """Return the index of the highest score of every row, [N]; a random one of those that are equal.

    >>> random_argmax(np.array([[1.0, 3.0, 2.0], [0.0, 5.0, 5.0]]), np.random.default_rng(0)).tolist()
    [1, 2]
    """
    best = scores == scores.max(-1, keepdims=True)
    return np.where(best, random.random(scores.shape), -1.0).argmax(-1)
