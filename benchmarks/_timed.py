"""An environment whose episodes take a fixed time, in ten steps."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

NUM_STEPS = 10


class Timed(gym.Env):
    """Sleeps or computes for a fixed time per step; the reward is the action."""

    def __init__(self, milliseconds: float, waits: bool) -> None:
        self.seconds, self.waits = milliseconds / 1000 / NUM_STEPS, waits
        self.observation_space = gym.spaces.Box(0, 1, (4,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def _observation(self) -> np.ndarray:
        return self.np_random.random(4, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self.steps = 0
        return self._observation(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Sleep or compute, then return the next observation."""
        if self.waits:
            time.sleep(self.seconds)
        else:
            until = time.thread_time() + self.seconds
            while time.thread_time() < until:
                pass
        self.steps += 1
        return self._observation(), float(action), False, self.steps == NUM_STEPS, {}
