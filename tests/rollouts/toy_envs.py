"""Environments that record their own episodes, for comparison with batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from raceway.envs import Slots, SteppedSlots, VectorSlots

KINDS = ["stepped", *(mode.name for mode in AutoresetMode)]
"""The ways to step several environments."""


class Fault(NamedTuple):
    """What fails, in which episode, and in which of its steps; step -1 is the reset."""

    what: str
    episode: int
    step: int


@dataclass
class Episode:
    """The record of an episode; it has one more observation than steps."""

    seed: int | None
    obs: list[np.ndarray]
    steps: list[tuple[int, float, bool, bool]] = field(default_factory=list)
    """Action, reward, terminated, truncated."""


class Counting(gym.Env[Any, Any]):
    """An environment that observes its name, the number of its episode, and the step within it. All rewards differ.

    Args:
        name: the environment's name.
        plan: the length of every episode, negative if it is truncated instead of terminated. It is repeated.
        fault: a failure to simulate.
        scale: factor of the observations.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Discrete(4)

    def __init__(self, name: int, plan: Sequence[int], fault: Fault | None = None, scale: float = 1.0) -> None:
        self.name, self.plan, self.fault, self.scale = name, plan, fault, scale
        self.episodes: list[Episode] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episodes.append(Episode(seed, []))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        number, episode = self._number(), self.episodes[-1]
        length, now = self.plan[number % len(self.plan)], len(episode.steps) + 1
        assert now <= abs(length), "stepped after the end of an episode"
        reward: Any = 10_000.0 * self.name + 100 * number + now
        over = now == abs(length)
        episode.steps.append((int(action), reward, over and length > 0, over and length < 0))
        obs = self._observe()
        if self.fault == ("nan reward", number, now - 1):
            reward = np.nan
        elif self.fault == ("type of reward", number, now - 1):
            reward = {"points": 3}
        return obs, reward, *episode.steps[-1][2:], {}  # type: ignore[return-value]

    def _number(self) -> int:
        """Return the number of the current episode, not counting those without steps."""
        return len([episode for episode in self.episodes[:-1] if episode.steps])

    def _observe(self) -> Any:
        episode = self.episodes[-1]
        obs = np.array([self.name, len(self.episodes), len(episode.steps)], np.float32) * np.float32(self.scale)
        episode.obs.append(obs)
        what, number, step = self.fault or Fault("", 0, 0)
        if (number, step) != (self._number(), len(episode.steps) - 1):
            return obs
        if what == "raises":
            raise RuntimeError("the simulator broke down")
        return {"nan": obs * np.nan, "infinite": obs + np.array([0, np.inf, 0]), "shape": obs[:2]}.get(what, obs)

    def since(self, number: int) -> list[Episode]:
        """Return the episodes with steps, from a number on. Vector environments may reset twice."""
        return [episode for episode in self.episodes[number:] if episode.steps]


class Walk(gym.Env[Any, Any]):
    """An environment with random observations, rewards, lengths and ends of episodes."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space: spaces.Space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 12))
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        terminates = bool(self.np_random.integers(2))
        obs, reward = self.np_random.random(2, np.float32), float(self.np_random.random() * (1 + np.sum(action)))
        return obs, reward, self.left == 0 and terminates, self.left == 0 and not terminates, {}


def slots_of(kind: str, envs: Sequence[gym.Env]) -> Slots:
    """Return slots with these environments."""
    if kind == "stepped":
        queue = iter(envs)
        return SteppedSlots(lambda: next(queue), len(envs))
    return VectorSlots(SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode[kind]))
