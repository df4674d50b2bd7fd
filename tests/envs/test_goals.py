"""Environments with goals: which fit hindsight replay, and how their functions are called."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.envs import BitFlipping, EnvSettings
from raceway.envs.goals import GoalFunctions, check_goals
from raceway.errors import ConfigError


class Near(gym.Env[Any, Any]):
    """A goal on a line, and functions that a test replaces."""

    action_space = spaces.Discrete(2)
    observation_space: spaces.Space = spaces.Dict(
        {name: spaces.Box(-1, 1, (1,)) for name in ("observation", "achieved_goal", "desired_goal")}
    )

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.linalg.norm(achieved_goal - desired_goal, axis=-1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        obs = {name: np.zeros(1, np.float32) for name in ("observation", "achieved_goal")}
        return {**obs, "desired_goal": np.ones(1, np.float32)}, {}


def made(**methods: Callable[..., Any] | spaces.Space) -> EnvSettings:
    """Return the settings of an environment with these methods."""
    return EnvSettings(type("Near", (Near,), methods))


def test_functions_are_called_with_the_goals_of_all_steps() -> None:
    functions = GoalFunctions(EnvSettings("raceway/BitFlipping-v0", {"num_bits": 2}))
    achieved, desired = np.array([[0, 1], [1, 1], [0, 0]]), np.array([[0, 1], [1, 0], [0, 0]])
    assert functions.rewards(achieved, desired).tolist() == [0, -1, 0]
    terminated = functions.terminated(achieved, desired)
    assert terminated is not None
    assert terminated.tolist() == [True, False, True]
    functions.close()


def test_an_environment_need_not_say_which_steps_terminate() -> None:
    assert GoalFunctions(made()).terminated(np.zeros((3, 1)), np.ones((3, 1))) is None
    # as those of Gymnasium-Robotics, which never terminate
    functions = GoalFunctions(made(compute_terminated=lambda self, achieved, desired, info: False))
    functions.check()
    assert functions.terminated(np.zeros((3, 1)), np.ones((3, 1))).tolist() == [False] * 3  # type: ignore[union-attr]


def test_environments_with_goals_pass_the_check() -> None:
    check_goals(made())
    check_goals(EnvSettings(BitFlipping, {"num_bits": 5}))


def single(self: Any, achieved: Any, desired: Any, info: Any) -> float:
    return float(np.abs(achieved - desired).sum())


PLAIN = spaces.Box(-1, 1, (3,))
UNEQUAL = spaces.Dict({"observation": PLAIN, "achieved_goal": PLAIN, "desired_goal": spaces.Box(-1, 1, (2,))})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (EnvSettings("cartpole"), "CartPole-v1 have no observation and no achieved_goal and no desired_goal: Box"),
        (
            made(observation_space=UNEQUAL),
            r"Near they are Box\(.*\(3,\).* and Box\(.*\(2,\).* Give both the same shape",
        ),
        (made(compute_reward=single), r"compute_reward of Near returned 2.0 for the goals of 4 steps"),
        (
            made(compute_reward=lambda self, achieved, desired, info: np.zeros((len(achieved), 1))),
            r"compute_reward of Near returned \[\[0.0\], .* for the goals of 4 steps, \[4, ...\]. Hindsight",
        ),
        (
            made(compute_reward=lambda self, achieved, desired, info: info["distance"]),
            "compute_reward of Near raised KeyError: 'distance'. Hindsight replay calls it with arrays",
        ),
        (
            # the norm of all goals together: one number for all
            made(compute_terminated=lambda self, a, d, info: bool(np.linalg.norm(a - d) < 0.5)),
            r"compute_terminated of Near returned \[False, False, False, False\] for four goals, but \[0.0, 1",
        ),
    ],
)
def test_environments_that_do_not_fit_are_refused(settings: EnvSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_goals(settings.resolved())


def test_an_environment_without_rewards_for_other_goals_is_refused() -> None:
    class Bare(gym.Env[Any, Any]):
        observation_space, action_space, reset = Near.observation_space, Near.action_space, Near.reset

    with pytest.raises(ConfigError, match=r"Bare has no method compute_reward\(achieved_goal, desired_goal, info\)"):
        check_goals(EnvSettings(Bare))


def test_rewards_that_are_not_finite_are_refused() -> None:
    functions = GoalFunctions(made(compute_reward=lambda self, achieved, desired, info: np.full(len(achieved), np.nan)))
    with pytest.raises(ConfigError, match="compute_reward of Near returned a reward that is not finite"):
        functions.rewards(np.zeros((2, 1)), np.zeros((2, 1)))
