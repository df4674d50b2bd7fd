"""A contextual bandit whose rewards are linear: the best arm for every observation, and its mean reward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.errors import ConfigError

Array = np.ndarray
Matrix = Sequence[Sequence[float]] | Array

_CONTEXTS = tuple((1.0, float(x), float(y)) for x in (-1, 1) for y in (-1, 0, 1))
_WEIGHTS = ((0.5, 1.0, 0.0), (0.5, -1.0, 0.0), (0.5, 0.0, 1.25), (0.5, 0.0, -1.25), (0.75, 0.0, 0.0))


class LinearBandit(gym.Env):
    """Arms with linear rewards: for the observation x, arm k pays xᵀwₖ and noise. An episode is one pull.

    The observation is one of the contexts, all equally likely. `info["regret"]` is what the best arm pays on average
    for the observation, minus what the pulled arm does.

    Args:
        weights: the weights w of every arm, [K, D].
        contexts: the possible observations, [C, D].
        noise: the standard deviation of the noise, which is Gaussian.
    """

    def __init__(self, weights: Matrix = _WEIGHTS, contexts: Matrix = _CONTEXTS, noise: float = 0.1) -> None:
        self.weights, self.contexts = np.array(weights, float), np.array(contexts, float)
        if self.weights.ndim != 2 or self.contexts.ndim != 2 or self.weights.shape[1] != self.contexts.shape[1]:
            raise ConfigError(
                f"weights and contexts must be matrices with the same number of columns, not of shape "
                f"{self.weights.shape} and {self.contexts.shape}"
            )
        if not noise >= 0:
            raise ConfigError(f"the standard deviation of the noise must be a number from 0, not {noise!r}")
        self.noise = noise
        self.observation_space = spaces.Box(-np.inf, np.inf, self.contexts.shape[1:], np.float32)
        self.action_space = spaces.Discrete(len(self.weights))
        self._context = 0

    @property
    def means(self) -> Array:
        """The mean reward of every arm for every context, [C, K]."""
        return self.contexts @ self.weights.T

    @property
    def best_return(self) -> float:
        """The mean return of the best arms.

        >>> LinearBandit(weights=[[1], [-1]], contexts=[[2], [-4]]).best_return
        3.0
        """
        return float(self.means.max(1).mean())

    @property
    def random_regret(self) -> float:
        """The mean regret of a random arm."""
        return self.best_return - float(self.means.mean())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._context = int(self.np_random.integers(len(self.contexts)))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        means = self.means[self._context]
        reward = means[int(action)] + (self.np_random.normal(0, self.noise) if self.noise else 0.0)
        return self._obs(), float(reward), True, False, {"regret": float(means.max() - means[int(action)])}

    def _obs(self) -> Array:
        return self.contexts[self._context].astype(np.float32)
