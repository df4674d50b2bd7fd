"""Episodes of one step: what a return distribution, a soft policy and a continuous action should become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_int, check_positive
from raceway.errors import ConfigError

Array = np.ndarray


class Coin(gym.Env):
    """A random reward that no action changes: the distribution of the return is that of the reward.

    Args:
        values: the possible rewards.
        probabilities: their probabilities; all the same if None.
        continuous: whether an action is a number from -1 to 1 instead of 0 or 1.
    """

    def __init__(
        self,
        values: Sequence[float] = (-1.0, 1.0),
        probabilities: Sequence[float] | None = None,
        continuous: bool = False,
    ) -> None:
        check_int("number of values", len(values))
        shares = np.full(len(values), 1 / len(values)) if probabilities is None else np.array(probabilities, float)
        if shares.shape != (len(values),) or (shares < 0).any() or not np.isclose(shares.sum(), 1):
            raise ConfigError(
                f"probabilities must be {len(values)} numbers from 0 that add up to 1, one for each value, not "
                f"{probabilities!r}"
            )
        order = np.argsort(values, kind="stable")
        self.values, self.probabilities = np.array(values, float)[order], shares[order]
        """The possible rewards in ascending order and their probabilities, [V]."""
        self.observation_space = spaces.Discrete(1)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)

    @property
    def mean(self) -> float:
        """The mean of the return, which a squared loss learns. A Huber loss learns a number nearer to the median."""
        return float(self.probabilities @ self.values)

    def quantiles(self, fractions: Array | Sequence[float]) -> Array:
        """Return the smallest return z with P(return ≤ z) ≥ τ, for every fraction τ.

        >>> Coin(values=(0, 10, 20), probabilities=(0.5, 0.25, 0.25)).quantiles([0.1, 0.5, 0.6, 1.0]).tolist()
        [0.0, 0.0, 10.0, 20.0]
        """
        # Sums of probabilities are inexact, so that the last may be less than 1 and 0.1 + 0.2 more than 0.3.
        at_most = np.cumsum(self.probabilities) + 1e-9
        return self.values[np.minimum(np.searchsorted(at_most, fractions), len(self.values) - 1)]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        reward = float(self.np_random.choice(self.values, p=self.probabilities))
        return 0, reward, True, False, {}


class SoftBandit(gym.Env):
    """A bandit with fixed rewards: the policy that maximises reward + α · entropy is π(a) = softmax(r/α).

    Args:
        rewards: the reward of each arm.
    """

    def __init__(self, rewards: Sequence[float] = (0.0, 1.0)) -> None:
        check_int("number of arms", len(rewards))
        self.rewards = np.array(rewards, float)
        self.observation_space = spaces.Discrete(1)
        self.action_space = spaces.Discrete(len(rewards))

    def soft_policy(self, alpha: float) -> Array:
        """Return the probabilities of the arms with the temperature α, [A].

        >>> SoftBandit(rewards=(0, 0.5)).soft_policy(alpha=0.5).round(3).tolist()
        [0.269, 0.731]
        """
        logits = self.rewards / check_positive("temperature", alpha)
        weights = np.exp(logits - logits.max())
        return weights / weights.sum()

    def entropy(self, alpha: float) -> float:
        """Return the entropy of the soft policy, in nats."""
        policy = self.soft_policy(alpha)
        return float(-np.sum(policy * np.log(np.maximum(policy, np.finfo(float).tiny))))

    def soft_value(self, alpha: float) -> float:
        """Return the soft value of the only state: α log Σ exp(r/α), which is the mean reward + α · entropy."""
        best = float(self.rewards.max())
        return best + alpha * float(np.log(np.exp((self.rewards - best) / check_positive("temperature", alpha)).sum()))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, float(self.rewards[int(action)]), True, False, {}


class Identity(gym.Env):
    """A continuous action that has to equal the observation x: the reward is -|a - x|², so that the best return is 0.

    Args:
        num_dims: the length of observations and actions, whose numbers are from -1 to 1.
    """

    def __init__(self, num_dims: int = 1) -> None:
        shape = (check_int("number of dimensions", num_dims),)
        self.observation_space = spaces.Box(-1, 1, shape, np.float32)
        self.action_space = spaces.Box(-1, 1, shape, np.float32)
        self._obs = np.zeros(shape, np.float32)

    @staticmethod
    def best_action(obs: Array) -> Array:
        """Return the best action, which is the observation."""
        return obs

    @staticmethod
    def q_value(obs: Array, action: Array) -> Array:
        """Return the Q-values of actions, [...], for observations and actions [..., num_dims]."""
        return -np.square(np.subtract(action, obs, dtype=float)).sum(-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs = self.np_random.uniform(-1, 1, self._obs.shape).astype(np.float32)
        return self._obs.copy(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        return self._obs.copy(), float(self.q_value(self._obs, np.clip(action, -1, 1))), True, False, {}
