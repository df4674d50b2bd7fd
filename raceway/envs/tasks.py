"""Environments with many tasks, for meta-learning: each can sample tasks and be set to one of them.

Without a task set, every episode samples its own from the episode's seed. The task is not part of the observation.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_choice
from raceway.envs.env_vector import Slots, SteppedSlots
from raceway.errors import ConfigError
from raceway.rl.seeding import Purpose, derive_seed

Array = np.ndarray

_STEP_LENGTH = 0.1  # of an action of 1
_GOAL_RADIUS = 0.01  # an episode ends within this distance of the goal


class HasTasks(Protocol):
    """The interface of an environment with tasks."""

    def sample_tasks(self, num: int, seed: int) -> Array:
        """Sample tasks, [num, ...]."""

    def set_task(self, task: Array) -> None:
        """Set the task of all episodes from the next reset on."""


class PointGoals(gym.Env):
    """A point on a plane that starts at the origin; the reward of a step is minus its distance from a hidden goal.

    Finn et al. 2017, https://arxiv.org/abs/1703.03400, section 5.3, with the distance instead of its square.

    Args:
        goals: `square`, with coordinates between -`size` and `size`; or `semicircle`, on the upper half of a circle of
            radius `size`.
        size: the size of that region.
    """

    def __init__(self, goals: str = "square", size: float = 0.5) -> None:
        self.goals, self.size = check_choice("region of goals", goals, ("square", "semicircle")), size
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self._task: Array | None = None
        self._goal, self._position = (0.0, 0.0), (0.0, 0.0)

    def sample_tasks(self, num: int, seed: int) -> Array:
        """Sample goals, [num, 2]."""
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
        x, y = self.sample_tasks(1, _sample_seed(self))[0] if self._task is None else self._task
        self._goal, self._position = (float(x), float(y)), (0.0, 0.0)
        return np.zeros(2, np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        # Plain floats: for two numbers, numpy takes five times as long.
        (x, y), (right, up) = self._position, action.tolist()
        x += _STEP_LENGTH * min(max(right, -1.0), 1.0)
        y += _STEP_LENGTH * min(max(up, -1.0), 1.0)
        self._position = x, y
        distance = math.dist(self._position, self._goal)
        return np.array(self._position, np.float32), -distance, distance < _GOAL_RADIUS, False, {}


class Direction(gym.Wrapper):
    """A MuJoCo walker that has to move forward (task 1) or backward (task -1): the reward is its speed that way.

    Finn et al. 2017, section 5.3: half cheetah, forward/backward.
    """

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        self._task: Array | None = None
        self._direction = 1.0

    def sample_tasks(self, num: int, seed: int) -> Array:
        """Sample directions, [num], as many forward as backward; the last of an odd number is random."""
        random = np.random.default_rng(seed)
        return random.permutation(np.resize(random.permutation([-1.0, 1.0]), num))

    def set_task(self, task: Array) -> None:
        """Set the direction."""
        self._task = task

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        first_obs_and_info = self.env.reset(**settings)
        task = self.sample_tasks(1, _sample_seed(self.unwrapped))[0] if self._task is None else self._task
        self._direction = float(task)
        return first_obs_and_info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, _, terminated, truncated, info = self.env.step(action)
        return obs, self._direction * info["x_velocity"] + info["reward_ctrl"], terminated, truncated, info


def mujoco_cheetah_direction(**settings: Any) -> gym.Env:
    """Make Gymnasium's half cheetah with the direction as the task."""
    from gymnasium.envs.mujoco.half_cheetah_v5 import HalfCheetahEnv  # imports MuJoCo

    return Direction(HalfCheetahEnv(**{"ctrl_cost_weight": 0.05, **settings}))  # as in the paper


def _sample_seed(env: gym.Env) -> int:
    return int(env.np_random.integers(1 << 31))


gym.register("PointGoals-v0", f"{__name__}:PointGoals", max_episode_steps=50)
gym.register("HalfCheetahDirection-v0", f"{__name__}:mujoco_cheetah_direction", max_episode_steps=100)


def has_tasks(slots: Slots) -> bool:
    """Whether the environments have tasks."""
    return isinstance(slots, SteppedSlots) and slots.envs[0].has_wrapper_attr("set_task")


def assign_tasks(slots: Slots, *, seed: int, number: int, shard: int, num_shards: int) -> None:
    """Set all environments of a shard to its task, one of the `num_shards` tasks sampled for this round."""
    if not isinstance(slots, SteppedSlots) or not has_tasks(slots):
        raise ConfigError(
            "these environments have no tasks. Give them the methods set_task(task) and sample_tasks(num, seed)."
        )
    tasks = slots.envs[0].get_wrapper_attr("sample_tasks")(num_shards, derive_seed(seed, Purpose.TASKS, number))
    for env in slots.envs:
        env.get_wrapper_attr("set_task")(tasks[shard])
