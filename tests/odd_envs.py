"""An environment that fails in a chosen way, or is slow. Use it as `tests.odd_envs:Odd-v0`."""

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces


class Odd(gym.Env[Any, Any]):
    """Fails in the way `how` at step `at`; until then it observes its start and the number of steps.

    Args:
        how: `reset` or `raise` an error, return `nan` or a wrong `shape` as observation, or NaN as `reward`;
            `continuous` has continuous actions, and anything else never fails.
        at: the step at which it fails.
        length: the steps of an episode.
        seconds: the duration of a step.
        busy: whether a step computes for that long, instead of sleeping.
    """

    def __init__(self, how: str = "", at: int = 3, length: int = 8, seconds: float = 0.0, busy: bool = False) -> None:
        self.how, self.at, self.length, self.seconds, self.busy = how, at, length, seconds, busy
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (1,)) if how == "continuous" else spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.how == "reset":
            raise RuntimeError("the simulator did not start")
        self.now = 0
        self.start = float(self.np_random.random())
        return np.array([self.start, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.now += 1
        if self.seconds:
            self._take_time()
        obs: Any = np.array([self.start, self.now], np.float32)
        reward: Any = float(np.ravel(action)[0])
        if self.now == self.at:
            if self.how == "raise":
                raise RuntimeError("the simulator broke down")
            obs = {"nan": obs * np.nan, "shape": obs[:1]}.get(self.how, obs)
            reward = np.nan if self.how == "reward" else reward
        return obs, reward, False, self.now == self.length, {}

    def _take_time(self) -> None:
        if not self.busy:
            time.sleep(self.seconds)
            return
        deadline = time.thread_time() + self.seconds
        while time.thread_time() < deadline:
            pass


gym.register("Odd-v0", entry_point=Odd)
