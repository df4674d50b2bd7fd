"""Environments whose infos tell how an episode went."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Goal(gym.Env[Any, Any]):
    """Episodes of 2 to 7 steps, by the seed, with a reward of 1 per step.

    In the last step `is_success` says whether the length is odd, and `distance` is ten times the length; other steps
    have other values. The info is one dict, which is changed in every step.

    Args:
        quiet: an episode of this length has an info without these two entries.
    """

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, quiet: int = 0) -> None:
        self.quiet, self.steps, self.length, self.info = quiet, 0, 0, dict[str, Any]()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps, self.length = 0, int(self.np_random.integers(2, 8))
        self._set_info(distance=-1.0, is_success=False, label="reset")
        return self._observe(), self.info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        over = self.steps == self.length
        if over and self.length == self.quiet:
            self._set_info(label="quiet")
        elif over:
            self._set_info(distance=10.0 * self.length, is_success=self.length % 2 == 1, label="over")
        else:
            self._set_info(distance=-5.0, is_success=not self.length % 2, label="on the way")
        return self._observe(), 1.0, over and self.length < 5, over and self.length >= 5, self.info

    def _set_info(self, **entries: Any) -> None:
        self.info.clear()
        self.info.update(entries)

    def _observe(self) -> Any:
        return np.array([self.steps / 8, self.length / 8], np.float32)


gym.register("Goal-v0", Goal)
