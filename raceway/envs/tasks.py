"""Environments of many tasks, for learning to adapt: each can be told which one it is, and draw others.

One that is told none has a task of its own in every episode, by the episode's seed. What the task is, is never seen.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_choice
from raceway.envs.seeds import Purpose, seed_of
from raceway.envs.slots import Slots, SteppedSlots
from raceway.errors import ConfigError

Array = np.ndarray

_SPEED = 0.1  # how far an action of 1 goes
_NEAR = 0.01  # how near to the goal an episode ends


class HasTasks(Protocol):
    """What an environment of tasks has."""

    def sample_tasks(self, num: int, seed: int) -> Array:
        """Draw so many tasks, [num, ...]."""

    def set_task(self, task: Array) -> None:
        """Let this be the task, until it is told another."""


class PointGoals(gym.Env):
    """A point on a plane, which begins in the middle; each step costs how far it then is from a hidden goal.

    Finn et al. 2017, https://arxiv.org/abs/1703.03400, section 5.3, with the distance instead of its square.

    Args:
        goals: `square`, anywhere at most `size` from the middle in both directions; or `semicircle`, on the upper half
            of the circle of radius `size`.
        size: of that.
    """

    def __init__(self, goals: str = "square", size: float = 0.5) -> None:
        self.goals, self.size = check_choice("place of goals", goals, ("square", "semicircle")), size
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._task: Array | None = None
        self._goal, self._place = (0.0, 0.0), (0.0, 0.0)

    def sample_tasks(self, num: int, seed: int) -> Array:
        """Draw goals, [num, 2]."""
        random = np.random.default_rng(seed)
        if self.goals == "square":
            return random.uniform(-self.size, self.size, (num, 2))
        angles = random.uniform(0, math.pi, num)
        return self.size * np.stack([np.cos(angles), np.sin(angles)], 1)

    def set_task(self, task: Array) -> None:
        """Set the goal, [2]."""
        self._task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        x, y = self.sample_tasks(1, _any_seed(self))[0] if self._task is None else self._task
        self._goal, self._place = (float(x), float(y)), (0.0, 0.0)
        return np.zeros(2, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        # Plain numbers: for two of them, numpy takes five times as long.
        (x, y), (right, up) = self._place, action.tolist()
        x += _SPEED * min(max(right, -1.0), 1.0)
        y += _SPEED * min(max(up, -1.0), 1.0)
        self._place = x, y
        away = math.dist(self._place, self._goal)
        return np.array(self._place, np.float32), -away, away < _NEAR, False, {}


class Direction(gym.Wrapper):
    """A MuJoCo walker that is to move forward (a task of 1) or backward (-1): the reward is its speed that way.

    Finn et al. 2017, section 5.3: half cheetah, forward/backward.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._task: Array | None = None
        self._direction = 1.0

    def sample_tasks(self, num: int, seed: int) -> Array:
        """Draw directions, [num], as many forward as backward, and the last of an odd number by chance."""
        random = np.random.default_rng(seed)
        return random.permutation(np.resize(random.permutation([-1.0, 1.0]), num))

    def set_task(self, task: Array) -> None:
        """Set the direction."""
        self._task = task

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        first = self.env.reset(**settings)
        task = self.sample_tasks(1, _any_seed(self.unwrapped))[0] if self._task is None else self._task
        self._direction = float(task)
        return first

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        return obs, self._direction * info["x_velocity"] + info["reward_ctrl"], terminated, truncated, info


def mujoco_cheetah_direction(**settings: Any) -> gym.Env:
    """Make Gymnasium's half cheetah with a direction."""
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv  # which imports MuJoCo

    return Direction(HalfCheetahEnv(**{"ctrl_cost_weight": 0.05, **settings}))  # the paper's


def _any_seed(env: gym.Env) -> int:
    return int(env.np_random.integers(1 << 31))


gym.register("PointGoals-v0", f"{__name__}:PointGoals", max_episode_steps=50)
gym.register("HalfCheetahDirection-v0", f"{__name__}:mujoco_cheetah_direction", max_episode_steps=100)


def has_tasks(slots: Slots) -> bool:
    """Whether environments are of tasks."""
    return isinstance(slots, SteppedSlots) and slots.envs[0].has_wrapper_attr("set_task")


def give_tasks(slots: Slots, *, seed: int, number: int, shard: int, num_shards: int) -> None:
    """Give all environments of a shard its task: of those that are drawn for this number, for all shards together."""
    if not isinstance(slots, SteppedSlots) or not has_tasks(slots):
        raise ConfigError("these environments have no tasks: there is no set_task(task) and sample_tasks(num, seed)")
    drawn = slots.envs[0].get_wrapper_attr("sample_tasks")(num_shards, seed_of(seed, Purpose.TASKS, number))
    for env in slots.envs:
        env.get_wrapper_attr("set_task")(drawn[shard])
