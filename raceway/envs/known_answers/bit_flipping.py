"""A goal that random actions hardly ever reach, for hindsight experience replay."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_int
from raceway.envs.known_answers.discounting import discounted_sum

Array = np.ndarray


class BitFlipping(gym.Env):
    """Bits that have to become those of a goal: each action flips one. The reward is -1, and 0 on reaching the goal.

    Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495, section 3.1; here the goal differs from the first bits.
    Reaching the goal terminates the episode, otherwise it is truncated after as many steps as there are bits.
    `info["is_success"]` is whether the goal was reached.

    The methods `compute_reward` and `compute_terminated` also take arrays with leading dimensions, [..., num_bits], for
    relabelled goals. `info` is not used.

    Args:
        num_bits: the number of bits.
    """

    def __init__(self, num_bits: int = 8) -> None:
        self.num_bits = check_int("number of bits", num_bits)
        parts = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({part: spaces.Box(0, 1, (num_bits,), np.float32) for part in parts})
        self.action_space = spaces.Discrete(num_bits)
        self._bits, self._goal = np.zeros(num_bits, np.float32), np.ones(num_bits, np.float32)
        self._num_steps = 0

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Array:
        """Return the rewards of steps that lead to achieved goals, [...].

        >>> BitFlipping(2).compute_reward(np.array([[0, 1], [1, 1]]), np.array([1, 1])).tolist()
        [-1.0, 0.0]
        """
        return self.compute_terminated(achieved_goal, desired_goal, info).astype(np.float32) - np.float32(1)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Array:
        """Return whether steps that lead to achieved goals terminate the episode, [...]."""
        return np.asarray(np.equal(achieved_goal, desired_goal).all(-1))

    def value(self, achieved_goal: Array, desired_goal: Array, gamma: float) -> Any:
        """Return the best values, [...]: with d bits to flip, d-1 steps have the reward -1 and the last has 0."""
        num_different = np.not_equal(achieved_goal, desired_goal).sum(-1)
        return -discounted_sum(np.maximum(num_different - 1, 0), gamma)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._num_steps = 0
        self._bits = self._goal = self._random_bits()
        while np.array_equal(self._bits, self._goal):
            self._goal = self._random_bits()
        return self._obs(), {"is_success": False}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        self._bits = self._bits.copy()
        self._bits[int(action)] = 1 - self._bits[int(action)]
        self._num_steps += 1
        reward = float(self.compute_reward(self._bits, self._goal))
        terminated = bool(self.compute_terminated(self._bits, self._goal))
        truncated = not terminated and self._num_steps == self.num_bits
        return self._obs(), reward, terminated, truncated, {"is_success": terminated}

    def _random_bits(self) -> Array:
        return self.np_random.integers(2, size=self.num_bits).astype(np.float32)

    def _obs(self) -> dict[str, Array]:
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}
