"""Rewards for other goals: the functions that an environment with goals has for them, called with arrays.

Such an environment has observations of a Dict space with `observation`, `achieved_goal` and `desired_goal`, and

    compute_reward(achieved_goal, desired_goal, info)        the rewards of steps that lead to achieved goals
    compute_terminated(achieved_goal, desired_goal, info)    whether they end the episode; need not exist

as environments of Gymnasium-Robotics have. Both are called with the goals of N steps at once, [N, ...]. The info of
steps is not stored, so that `info` is an empty dict.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.envs.env_vector import close
from raceway.envs.make import EnvSettings, make_env
from raceway.errors import INTERRUPTS, ConfigError

Array = np.ndarray

_PARTS = ("observation", "achieved_goal", "desired_goal")
_REWARD, _TERMINATED = "compute_reward", "compute_terminated"


class GoalFunctions:
    """Computes rewards and ends of episodes for other goals, in an environment of its own.

    Args:
        settings: the environment. It is reset once, for functions that use what a reset sets up.
    """

    def __init__(self, settings: EnvSettings) -> None:
        self.name = settings.name
        self.env = make_env(settings)
        try:
            _check_spaces(self.env.observation_space, self.name)
            if not self.env.has_wrapper_attr(_REWARD):
                raise ConfigError(
                    f"hindsight replay needs the rewards of other goals, and {self.name} has no method compute_reward("
                    "achieved_goal, desired_goal, info). Add one, or set replay to uniform."
                )
            self._functions = {
                name: self.env.get_wrapper_attr(name)
                for name in (_REWARD, _TERMINATED)
                if self.env.has_wrapper_attr(name)
            }
            self._first_obs = self.env.reset(seed=0)[0]
        except BaseException:
            close(self.env)
            raise

    def rewards(self, achieved: Any, desired: Any) -> Array:
        """Return the rewards of steps that lead to achieved goals, [N], if these goals were desired."""
        rewards = self._call(_REWARD, achieved, desired)
        if not np.isfinite(rewards).all():
            raise ConfigError(f"{_REWARD} of {self.name} returned a reward that is not finite: {rewards}")
        return rewards

    def terminated(self, achieved: Any, desired: Any) -> Array | None:
        """Return whether such steps end the episode, [N]; None if the environment does not say."""
        return self._call(_TERMINATED, achieved, desired).astype(bool) if _TERMINATED in self._functions else None

    def _call(self, name: str, achieved: Any, desired: Any) -> Array:
        num = len(achieved)
        result = np.asarray(self._functions[name](achieved, desired, {}))
        if result.shape == () and name == _TERMINATED:  # as in Gymnasium-Robotics, where episodes never end themselves
            result = np.broadcast_to(result, num)
        if result.shape != (num,) or result.dtype.kind not in "biuf":
            raise self._error(name, f"returned {result.tolist()} for the goals of {num} steps, [{num}, ...]")
        return result

    def check(self) -> None:
        """Check that the functions accept arrays: the results for several goals are those for one after the other."""
        first, goal = (np.asarray(self._first_obs[part]) for part in ("achieved_goal", "desired_goal"))
        achieved, desired = np.stack([first, goal, first, goal]), np.stack([goal, goal, first, first])
        for name, function in self._functions.items():
            try:
                together = self._call(name, achieved, desired)
                singly = np.array([function(*goals, {}) for goals in zip(achieved, desired, strict=True)], float)
            except INTERRUPTS:
                raise
            except ConfigError:
                raise
            except Exception as error:
                raise self._error(name, f"raised {type(error).__name__}: {error}") from error
            if singly.shape != together.shape or not np.allclose(together, singly, equal_nan=True):
                raise self._error(
                    name, f"returned {together.tolist()} for four goals, but {singly.tolist()} one by one"
                )

    def _error(self, name: str, problem: str) -> ConfigError:
        return ConfigError(
            f"{name} of {self.name} {problem}. Hindsight replay calls it with arrays of goals, [N, ...], and an empty "
            f"dict as info: write it so that it returns an array [N], as np.linalg.norm(achieved_goal - desired_goal, "
            "axis=-1) does."
        )

    def close(self) -> None:
        """Close the environment."""
        close(self.env)


def check_goals(settings: EnvSettings) -> None:
    """Refuse an environment whose goals cannot be replaced in hindsight."""
    functions = GoalFunctions(settings)
    try:
        functions.check()
    finally:
        functions.close()


def _check_spaces(space: spaces.Space, name: str) -> None:
    parts = space.spaces if isinstance(space, spaces.Dict) else {}
    missing = [part for part in _PARTS if part not in parts]
    if missing:
        raise ConfigError(
            f"hindsight replay needs observations of a Dict space with {', '.join(_PARTS)}, and those of {name} have "
            f"no {' and no '.join(missing)}: {space}. Use an environment with goals, or set replay to uniform."
        )
    achieved, desired = parts["achieved_goal"], parts["desired_goal"]
    if achieved.shape is None or achieved.shape != desired.shape:
        raise ConfigError(
            f"hindsight replay uses achieved goals as desired ones, but in {name} they are {achieved} and {desired}. "
            "Give both the same shape."
        )
