"""Environments that a policy can solve only by remembering earlier observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_int

Array = np.ndarray


class TMaze(gym.Env):
    """A corridor to a junction: the first observation alone shows on which side of the junction the goal is.

    After Bakker 2001, "Reinforcement learning with long short-term memory". The agent moves along the corridor by
    itself, so that nothing but memory distinguishes the two goals. At the junction the actions are left (0) and right
    (1); the reward is 1 on the side of the goal and 0 on the other, and the episode terminates.

    Observations are `[side, junction]`: the side is -1 (left) or 1 (right) in the first and 0 in the others, and the
    junction is 1 at the junction, otherwise 0.

    Args:
        length: the number of steps to the junction.
    """

    best_return = 1.0
    memoryless_return = 0.5
    """The mean return of every policy that depends on the current observation alone."""

    def __init__(self, length: int = 5) -> None:
        self.length = check_int("length of the corridor", length)
        self.observation_space = spaces.Box(np.array([-1, 0], np.float32), np.ones(2, np.float32))
        self.action_space = spaces.Discrete(2)
        self._goal, self._position = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._goal, self._position = int(self.np_random.integers(2)), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self._position < self.length:
            self._position += 1
            return self._obs(), 0.0, False, False, {}
        return self._obs(), float(int(action) == self._goal), True, False, {}

    def _obs(self) -> Array:
        side = 2 * self._goal - 1 if self._position == 0 else 0
        return np.array([side, self._position == self.length], np.float32)


class RepeatPrevious(gym.Env):
    """Random symbols: the action has to be the symbol that was observed `delay` steps ago.

    After the environment of that name in POPGym, https://arxiv.org/abs/2303.01859. The first `delay` steps have no
    reward. Every later one has the same for the right symbol and 0 for others, so that the best return is 1.

    Args:
        delay: how many steps ago; 0 is the current symbol, which needs no memory.
        num_symbols: the number of different symbols.
        length: the number of steps of an episode.
    """

    best_return = 1.0

    def __init__(self, delay: int = 2, num_symbols: int = 4, length: int = 16) -> None:
        self.delay = check_int("delay", delay, minimum=0)
        self.num_symbols = check_int("number of symbols", num_symbols, minimum=2)
        self.length = check_int("length of an episode", length, minimum=delay + 1)
        self.observation_space, self.action_space = spaces.Discrete(num_symbols), spaces.Discrete(num_symbols)
        self._symbols: list[int] = []
        self._time = 0

    @property
    def memoryless_return(self) -> float:
        """The best mean return of policies that depend on the current observation alone: that of guessing."""
        return 1 / self.num_symbols if self.delay else self.best_return

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._symbols = self.np_random.integers(self.num_symbols, size=self.length + 1).tolist()
        self._time = 0
        return self._symbols[0], {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        scored = self._time >= self.delay
        right = scored and int(action) == self._symbols[self._time - self.delay]
        self._time += 1
        reward = right / (self.length - self.delay)
        return self._symbols[self._time], reward, self._time == self.length, False, {}
