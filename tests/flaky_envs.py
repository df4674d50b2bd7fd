"""An environment that crashes at random, as simulators do."""

from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

_num_created = count()


class SimulatorCrash(RuntimeError):
    """The error of a flaky environment."""


class Flaky(gym.Wrapper[Any, Any, Any, Any]):
    """Crashes at random, and cannot be used afterwards.

    Args:
        env: the environment to wrap.
        step: the probability of a crash in a step.
        reset: the probability of a crash in a reset.
        seed: the seed of the crashes, which differ between the environments of a process.
    """

    def __init__(self, env: gym.Env[Any, Any], *, step: float, reset: float, seed: int) -> None:
        super().__init__(env)
        self._probabilities = {"step": step, "reset": reset}
        self._random = np.random.default_rng([seed, next(_num_created)])
        self._crashed = False

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        self._maybe_crash("reset")
        return self.env.reset(**settings)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._maybe_crash("step")
        return self.env.step(action)

    def _maybe_crash(self, verb: str) -> None:
        assert not self._crashed, "the environment was used after a crash"
        if self._random.random() < self._probabilities[verb]:
            self._crashed = True
            raise SimulatorCrash(f"in {verb}")


def flaky_cartpole(step: float = 1e-4, reset: float = 1e-3, seed: int = 0) -> gym.Env[Any, Any]:
    """Create a CartPole that crashes at random."""
    return TimeLimit(Flaky(CartPoleEnv(), step=step, reset=reset, seed=seed), 500)
