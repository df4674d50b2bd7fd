"""Returns of whole episodes that are concatenated in one array."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def discounted_returns(rewards: Array, lengths: Array, gamma: float) -> Array:
    """Return the discounted returns Gₜ = rₜ + γ Gₜ₊₁ within every episode, [N].

    Sutton & Barto 2018, eq. 3.9. All episodes are computed at once, from their last step backwards: each pass doubles
    the number of later steps in the sum, so a thousand steps take ten passes.

    Args:
        rewards: rₜ of the concatenated episodes, [N].
        lengths: the number of steps of each episode, [E]; their sum is N.
        gamma: the discount γ.

    >>> discounted_returns(np.array([1.0, 2.0, 4.0, 8.0]), np.array([3, 1]), gamma=0.5)
    array([3., 4., 4., 8.])
    """
    from_end = _from_end(lengths)
    padded = np.zeros((int(lengths.max(initial=0)), len(lengths)), rewards.dtype)
    padded[from_end] = rewards
    reach = 1
    while reach < len(padded):
        padded[reach:] += gamma**reach * padded[:-reach]
        reach *= 2
    return padded[from_end]


def standardise_episodes(values: Array, lengths: Array, epsilon: float = 1e-8) -> Array:
    """Return (x - mean) / (deviation + ε) within every episode.

    >>> standardise_episodes(np.array([1.0, 3.0, 7.0]), np.array([2, 1])).round(3).tolist()
    [-1.0, 1.0, 0.0]
    """
    centred = values - np.repeat(episode_sums(values, lengths) / lengths, lengths)
    deviation = np.sqrt(episode_sums(centred**2, lengths) / lengths)
    return (centred / np.repeat(deviation + epsilon, lengths)).astype(values.dtype)


def episode_sums(values: Array, lengths: Array) -> Array:
    """Return the sum over every episode, [E].

    >>> episode_sums(np.array([1.0, 2.0, 4.0]), np.array([2, 1]))
    array([3., 4.])
    """
    return np.add.reduceat(values, np.cumsum(lengths) - lengths, dtype=np.float64)


def _from_end(lengths: Array) -> tuple[Array, Array]:
    """Return, for every step, the number of later steps in its episode and the index of the episode, both [N]."""
    ends = np.repeat(np.cumsum(lengths), lengths)
    return ends - 1 - np.arange(len(ends)), np.repeat(np.arange(len(lengths)), lengths)
