"""A problem for learning from a dataset: an action that the dataset lacks looks best to whoever extrapolates."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

Array = np.ndarray

_CLIFF = 0.25
"""The continuous action beyond which the reward is -1."""


class Bait(gym.Env):
    """Episodes of one step, with a bait: rewards of other actions extrapolate to a high one, and its own is -1.

    Observations x are from -1 to 1. Of discrete actions, 0 has the reward 0. Action 1 has -x where x is positive, so
    that a linear Q-function is above 0 where x is negative; there it is the bait, and `data_action` is always 0.
    Of continuous actions a, from -1 to 1, the reward is 1 + a up to 1/4. Beyond it, where a linear Q-function is
    highest, is the bait; those of `data_action` are up to 0.

    Args:
        continuous: whether an action is a number from -1 to 1 instead of 0 or 1.
    """

    def __init__(self, continuous: bool = False) -> None:
        self.continuous = continuous
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self._obs = np.zeros(1, np.float32)

    def data_action(self, obs: Array, random: np.random.Generator) -> Any:
        """Return the action of a dataset: it is random, and never the bait."""
        if self.continuous:
            return random.uniform(-1, 0, 1).astype(np.float32)
        return int(random.integers(2)) if obs[0] > 0 else 0

    def is_bait(self, obs: Array, action: Any) -> bool:
        """Whether an action takes the bait.

        >>> Bait().is_bait([-0.5], 1), Bait().is_bait([0.5], 1), Bait(continuous=True).is_bait([0.5], [0.3])
        (True, False, True)
        """
        return bool(np.ravel(action)[0] > _CLIFF if self.continuous else action == 1 and obs[0] <= 0)

    def extrapolated_value(self, obs: Array, action: Any) -> float:
        """Return the Q-value of an action as the rewards of the others suggest it.

        >>> Bait().extrapolated_value([-0.5], 1), Bait(continuous=True).extrapolated_value([0.0], [1.0])
        (0.5, 2.0)
        """
        return float(1 + np.ravel(action)[0] if self.continuous else -obs[0] * action)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._obs = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self._obs.copy(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        bait = self.is_bait(self._obs, action)
        return self._obs.copy(), -1.0 if bait else self.extrapolated_value(self._obs, action), True, False, {}
