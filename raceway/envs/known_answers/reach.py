"""A point that has to reach goals in a square: continuous actions for hindsight experience replay."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_int
from raceway.envs.known_answers.discounting import discounted_sum

Array = np.ndarray

_SPEED, _RADIUS = np.float32(0.2), np.float32(0.1)


class Reach(gym.Env):
    """A point that moves in a square by 0.2 times the action, and a goal: the reward is -1, or 0 at the goal.

    It is at the goal if no coordinate differs by more than 0.1. An episode starts with the point and the goal anywhere
    in the square, and never terminates: its registered time limit of 20 steps truncates it, so that a value is that of
    going to the goal and staying there. `info["is_success"]` is whether the point is at the goal.

    The method `compute_reward` also takes arrays with leading dimensions, [..., num_dims]. `info` is not used.

    Args:
        num_dims: the number of coordinates.
    """

    def __init__(self, num_dims: int = 2) -> None:
        num_dims = check_int("number of dimensions", num_dims)
        parts = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict({part: spaces.Box(-1, 1, (num_dims,), np.float32) for part in parts})
        self.action_space = spaces.Box(-1, 1, (num_dims,), np.float32)
        self._point = self._goal = np.zeros(num_dims, np.float32)

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any = None) -> Array:
        """Return the rewards of steps that lead to achieved goals, [...].

        >>> Reach(2).compute_reward(np.array([[0, 0.5], [0.95, 1]]), np.array([1, 1])).tolist()
        [-1.0, 0.0]
        """
        at_goal = np.abs(np.subtract(achieved_goal, desired_goal)).max(-1) <= _RADIUS
        return np.asarray(at_goal, np.float32) - np.float32(1)

    def value(self, achieved_goal: Array, desired_goal: Array, gamma: float) -> Any:
        """Return the best values, [...]: of n steps to the goal, n-1 have the reward -1, and all later ones 0."""
        distance = np.abs(np.subtract(achieved_goal, desired_goal)).max(-1)
        num_steps = np.ceil((distance - _RADIUS) / _SPEED - 1e-6).astype(int)
        return -discounted_sum(np.maximum(num_steps - 1, 0), gamma)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Array], dict[str, Any]]:
        super().reset(seed=seed)
        self._point, self._goal = self.np_random.uniform(-1, 1, (2, *self._point.shape)).astype(np.float32)
        return self._obs(), {"is_success": bool(self.compute_reward(self._point, self._goal) == 0)}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        move = _SPEED * np.clip(np.asarray(action, np.float32), -1, 1)
        self._point = np.clip(self._point + move, -1, 1)
        reward = float(self.compute_reward(self._point, self._goal))
        return self._obs(), reward, False, False, {"is_success": reward == 0}

    def _obs(self) -> dict[str, Array]:
        point = self._point
        return {"observation": point.copy(), "achieved_goal": point.copy(), "desired_goal": self._goal.copy()}
