"""A linear baseline for returns, fitted to the episodes themselves."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.rl.batch import tree_map
from raceway.rl.returns import discounted_returns

Array = np.ndarray


def linear_baseline(obs: Any, lengths: Array, returns: Array, ridge: float = 1e-5) -> Array:
    """Fit returns by a linear function of each step's features, by least squares, and return its predictions, [N].

    Duan et al. 2016, https://arxiv.org/abs/1604.06778, section 4: the features are o, o², t, t², t³ and 1.

    Args:
        obs: oₜ of the concatenated episodes, an array of [N, ...] or a tree of them.
        lengths: the number of steps of each episode, [E]; their sum is N.
        returns: Gₜ, [N].
        ridge: the penalty on large coefficients.

    >>> linear_baseline(np.zeros((4, 1)), np.array([2, 2]), np.array([3.0, 1.0, 5.0, 1.0])).round()
    array([4., 1., 4., 1.])
    """
    parts: list[Array] = []
    tree_map(lambda rows: parts.append(np.clip(rows.reshape(len(rows), -1).astype(float), -10, 10)), obs)
    step = np.arange(len(returns)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    time = step[:, None] / 100.0
    features = np.hstack([*parts, *(part**2 for part in parts), time, time**2, time**3, np.ones_like(time)])
    squares = features.T @ features + ridge * np.eye(features.shape[1])
    return (features @ np.linalg.solve(squares, features.T @ returns)).astype(returns.dtype)


def baseline_advantages(obs: Any, rewards: Array, lengths: Array, gamma: float, epsilon: float = 1e-8) -> Array:
    """Return discounted returns minus the linear baseline, standardised to a mean of 0 and a deviation of 1, [N].

    >>> baseline_advantages(np.zeros((2, 1)), np.array([1.0, 3.0]), np.array([1, 1]), gamma=0.9).round(3)
    array([-1.,  1.])
    """
    returns = discounted_returns(rewards, lengths, gamma)
    advantages = returns - linear_baseline(obs, lengths, returns)
    return (advantages - advantages.mean()) / (advantages.std() + epsilon)
