"""Environments in which no two observations are equal, so that each identifies one step of one episode."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tests.rollouts.turn_games import Scripted

OBS_SPACE = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class Unique(gym.Env[Any, Any]):
    """Episodes of one to seven steps, terminated or truncated. Every observation is random, from the episode's seed.

    It has tasks that change nothing.
    """

    observation_space = OBS_SPACE

    def __init__(self, continuous: bool = False) -> None:
        self.action_space: Any = spaces.Box(-1, 1, (1,)) if continuous else spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps_left = int(self.np_random.integers(1, 8))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps_left -= 1
        over, terminates = self.steps_left == 0, bool(self.np_random.integers(2))
        return self._observe(), float(np.sum(action)), over and terminates, over and not terminates, {}

    def _observe(self) -> Any:
        return self.np_random.normal(size=2).astype(np.float32)

    def sample_tasks(self, num: int, seed: int) -> Any:
        return np.zeros(num)

    def set_task(self, task: Any) -> None:
        pass


gym.register("UniqueSteps-v0", Unique)


class UniqueParallel(ParallelEnv[str, Any, Any]):
    """Agents that leave after different numbers of steps. No two observations are equal."""

    possible_agents = ["a", "b"]  # noqa: RUF012
    metadata: dict[str, Any] = {"name": "unique"}  # noqa: RUF012

    def observation_space(self, agent: str) -> spaces.Space:
        return OBS_SPACE

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.random = np.random.default_rng(seed)
        self.steps_left = {agent: int(self.random.integers(1, 8)) for agent in self.possible_agents}
        self.agents = list(self.possible_agents)
        return self._observe(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        acting = self.agents
        for agent in acting:
            self.steps_left[agent] -= 1
        obs, over = self._observe(), {agent: self.steps_left[agent] == 0 for agent in acting}
        truncates = bool(self.random.integers(2))
        self.agents = [agent for agent in acting if not over[agent]]
        terminated = {agent: over[agent] and not truncates for agent in acting}
        truncated = {agent: over[agent] and truncates for agent in acting}
        return obs, {agent: float(actions[agent]) for agent in acting}, terminated, truncated, {a: {} for a in acting}

    def _observe(self) -> Any:
        return {agent: self.random.normal(size=2).astype(np.float32) for agent in self.agents}


class UniqueTurns(Scripted):
    """The scripted turns, with random observations: no two are equal."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.seed = seed or 0

    def observe(self, agent: str) -> Any:
        key = [self.seed, self.now, self.possible_agents.index(agent)]
        return np.random.default_rng(key).normal(size=2).astype(np.float32)
