"""What returns were to be expected, fitted to the episodes themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.rl.batch import tree_map
from raceway.rl.returns import discounted_returns

Array = np.ndarray


def linear_baseline(obs: Any, lengths: Array, returns: Array, ridge: float = 1e-5) -> Array:
    """Return what a linear function of features of each step says of its return, fitted by least squares, [N].

    Duan et al. 2016, https://arxiv.org/abs/1604.06778, section 4: the features are o, o², t, t², t³ and 1.

    Args:
        obs: oₜ of episode after episode, an array of [N, ...] or a tree of them.
        lengths: the steps of each episode, [E], with sum N.
        returns: Gₜ, [N].
        ridge: how much large coefficients cost.

    >>> linear_baseline(np.zeros((4, 1)), np.array([2, 2]), np.array([3.0, 1.0, 5.0, 1.0])).round()
    array([4., 1., 4., 1.])
    """
    parts: list[Array] = []
    tree_map(lambda rows: parts.append(np.clip(rows.reshape(len(rows), -1).astype(float), -10, 10)), obs)
    place = np.arange(len(returns)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    time = place[:, None] / 100.0
    features = np.hstack([*parts, *(part**2 for part in parts), time, time**2, time**3, np.ones_like(time)])
    squares = features.T @ features + ridge * np.eye(features.shape[1])
    return (features @ np.linalg.solve(squares, features.T @ returns)).astype(returns.dtype)


def baseline_advantages(obs: Any, rewards: Array, lengths: Array, gamma: float, epsilon: float = 1e-8) -> Array:
    """Return by how much each step's discounted return is above the baseline, with a mean of 0 and a deviation of 1.

    >>> baseline_advantages(np.zeros((2, 1)), np.array([1.0, 3.0]), np.array([1, 1]), gamma=0.9).round(3)
    array([-1.,  1.])
    """
    returns = discounted_returns(rewards, lengths, gamma)
    above = returns - linear_baseline(obs, lengths, returns)
    return (above - above.mean()) / (above.std() + epsilon)
