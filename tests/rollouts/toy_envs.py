"""Environments that keep their own account of what happened, which batches are compared with."""

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
"""The ways to step environments."""


class Fault(NamedTuple):
    """What goes wrong, and when: in which episode, in which of its steps; in step -1 it is the reset."""

    what: str
    episode: int
    step: int


@dataclass
class Episode:
    """What an environment remembers of one: an observation more than steps."""

    seed: int | None
    obs: list[np.ndarray]
    steps: list[tuple[int, float, bool, bool]] = field(default_factory=list)
    """Action, reward, terminated, truncated."""


class Counting(gym.Env[Any, Any]):
    """Shows its name, the number of its episode, and the step within it. Every reward is another number.

    Args:
        name: of the environment.
        plan: the length of every episode, negative if it is truncated instead of terminated; then from the beginning.
        fault: what goes wrong.
        scale: of the observations.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (3,))
    action_space = spaces.Discrete(4)

    def __init__(self, name: int, plan: Sequence[int], fault: Fault | None = None, scale: float = 1.0) -> None:
        self.name, self.plan, self.fault, self.scale = name, plan, fault, scale
        self.played: list[Episode] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.played.append(Episode(seed, []))
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        number, episode = self._number(), self.played[-1]
        length, now = self.plan[number % len(self.plan)], len(episode.steps) + 1
        assert now <= abs(length), "it was stepped after the end of an episode"
        reward: Any = 10_000.0 * self.name + 100 * number + now
        over = now == abs(length)
        episode.steps.append((int(action), reward, over and length > 0, over and length < 0))
        seen = self._show()
        if self.fault == ("nan reward", number, now - 1):
            reward = np.nan
        elif self.fault == ("type of reward", number, now - 1):
            reward = {"points": 3}
        return seen, reward, *episode.steps[-1][2:], {}  # type: ignore[return-value]

    def _number(self) -> int:
        """Return the number of the episode, not counting those of which nothing was played."""
        return len([episode for episode in self.played[:-1] if episode.steps])

    def _show(self) -> Any:
        episode = self.played[-1]
        obs = np.array([self.name, len(self.played), len(episode.steps)], np.float32) * np.float32(self.scale)
        episode.obs.append(obs)
        what, number, step = self.fault or Fault("", 0, 0)
        if (number, step) != (self._number(), len(episode.steps) - 1):
            return obs
        if what == "raises":
            raise RuntimeError("the simulator broke down")
        return {"nan": obs * np.nan, "infinite": obs + np.array([0, np.inf, 0]), "shape": obs[:2]}.get(what, obs)

    def since(self, number: int) -> list[Episode]:
        """Return the episodes of which something was played. Vectors may reset twice."""
        return [episode for episode in self.played[number:] if episode.steps]


class Walk(gym.Env[Any, Any]):
    """Everything is random: what is seen, what is rewarded, how long an episode is, and how it ends."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,))
    action_space: spaces.Space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 12))
        return self.np_random.random(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        how = bool(self.np_random.integers(2))
        seen, reward = self.np_random.random(2, np.float32), float(self.np_random.random() * (1 + np.sum(action)))
        return seen, reward, self.left == 0 and how, self.left == 0 and not how, {}


def slots_of(kind: str, envs: Sequence[gym.Env]) -> Slots:
    """Return slots of these environments."""
    if kind == "stepped":
        queue = iter(envs)
        return SteppedSlots(lambda: next(queue), len(envs))
    return VectorSlots(SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode[kind]))
