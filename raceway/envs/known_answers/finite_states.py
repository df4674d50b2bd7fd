"""Finite state spaces whose values can be written down."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_choice, check_fraction, check_int
from raceway.envs.known_answers.discounting import discounted_sum
from raceway.errors import ConfigError

Array = np.ndarray


class Chain(gym.Env):
    """A row of states: the actions are left (0) and right (1), and entering the last state gives 1 and terminates.

    Registered with a time limit of 100 steps, which truncates and so does not change the Q-values.

    Args:
        num_states: the number of states, the last one included.
        random_start: whether an episode starts in a random state instead of the first.
    """

    def __init__(self, num_states: int = 6, random_start: bool = False) -> None:
        self.num_states = check_int("number of states", num_states, minimum=2)
        self.random_start = random_start
        self.observation_space, self.action_space = spaces.Discrete(num_states), spaces.Discrete(2)
        self._state = 0

    def q_values(self, gamma: float) -> Array:
        """Return the Q-values of the optimal policy, [num_states, 2]: γ^d for d further steps to the reward.

        Those of the last state, in which no action is taken, are 0.
        """
        check_fraction("discount factor", gamma)
        last = self.num_states - 1
        state = np.arange(last)
        steps_after = np.stack([last - np.maximum(state - 1, 0), last - (state + 1)], 1)
        return np.concatenate([float(gamma) ** steps_after, np.zeros((1, 2))])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = int(self.np_random.integers(self.num_states - 1)) if self.random_start else 0
        return self._state, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._state = self._state + 1 if int(action) == 1 else max(self._state - 1, 0)
        at_end = self._state == self.num_states - 1
        return self._state, float(at_end), at_end, False, {}


class Endless(gym.Env):
    """A reward of 1 in every step, whatever the action: the value shows whether an algorithm bootstraps correctly.

    A truncated episode would have continued, so that its last step must bootstrap and the value is 1/(1-γ) everywhere.
    After termination there is nothing, and with n steps left the value is (1-γⁿ)/(1-γ).

    Args:
        ending: `truncated` or `terminated`.
        length: the number of steps of an episode.
        show_remaining: whether the observation is the number of steps left, instead of always 0. Only with
            `terminated`: no step starts from the observation after a truncation, so its value would never be learned.
        continuous: whether an action is a number from -1 to 1 instead of 0 or 1.
    """

    def __init__(
        self,
        ending: str = "truncated",
        length: int = 10,
        show_remaining: bool = False,
        continuous: bool = False,
    ) -> None:
        self.ending = check_choice("ending", ending, ("truncated", "terminated"))
        self.length = check_int("length of an episode", length)
        self.show_remaining = show_remaining
        if show_remaining and ending == "truncated":
            raise ConfigError(
                "show_remaining needs ending='terminated': the value after a truncation cannot be learned, because no "
                "step starts with 0 steps left."
            )
        self.observation_space = spaces.Discrete(length + 1 if show_remaining else 1)
        self.action_space = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self._remaining = length

    def value(self, remaining: int | Array, gamma: float) -> Any:
        """Return the value of states with these numbers of steps left, in the shape of `remaining`.

        >>> Endless("truncated").value(3, gamma=0.5), Endless("terminated").value(3, gamma=0.5)
        (2.0, 1.75)
        """
        num_rewards = remaining if self.ending == "terminated" else np.full(np.shape(remaining), math.inf)
        return discounted_sum(num_rewards, gamma)

    def hidden_value(self, gamma: float) -> float:
        """Return the value that one-step TD learning converges to if the observation does not show the steps left.

        With termination it is the fixed point of V = 1 + γ(1 - 1/length)V, as one step of every episode does not
        bootstrap. Longer returns, other losses than the squared one (such as the Huber loss of DQN), and steps that are
        not sampled equally often have other fixed points.
        """
        survival = 1 - 1 / self.length if self.ending == "terminated" else 1
        return float(discounted_sum(math.inf, survival * check_fraction("discount factor", gamma)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self._remaining = self.length
        return self._obs(), {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self._remaining -= 1
        ended = self._remaining <= 0
        return self._obs(), 1.0, ended and self.ending == "terminated", ended and self.ending == "truncated", {}

    def _obs(self) -> int:
        return self._remaining if self.show_remaining else 0
