"""Environments whose observations hide a part of the state, so that a policy needs memory."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

_POSITIONS = [0, 2]  # of the cart, and the angle of the pole


class CartPolePositions(CartPoleEnv):
    """CartPole without the two velocities, which a policy must infer from what it saw before.

    A feed-forward policy cannot: it balances for some 50 steps.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        whole = self.observation_space
        assert isinstance(whole, spaces.Box)
        self.observation_space = spaces.Box(whole.low[_POSITIONS], whole.high[_POSITIONS], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        obs, info = super().reset(seed=seed, options=options)
        return obs[_POSITIONS], info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        obs, *rest = super().step(action)
        return obs[_POSITIONS], *rest


gym.register("CartPolePositions-v1", f"{__name__}:CartPolePositions", max_episode_steps=500)
