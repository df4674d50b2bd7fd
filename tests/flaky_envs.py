"""An environment that crashes now and then, as simulators do: by chance, whatever is played in it."""

from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

_made = count()


class SimulatorCrash(RuntimeError):
    """What it raises."""


class Flaky(gym.Wrapper[Any, Any, Any, Any]):
    """Crashes by chance, and does nothing any more after that.

    Args:
        env: what is played.
        step: the chance of a crash in a step.
        reset: the chance of one in a reset.
        seed: of these chances. Every environment of a process has others.
    """

    def __init__(self, env: gym.Env[Any, Any], *, step: float, reset: float, seed: int) -> None:
        super().__init__(env)
        self._chances = {"step": step, "reset": reset}
        self._random = np.random.default_rng([seed, next(_made)])
        self._crashed = False

    def reset(self, **settings: Any) -> tuple[Any, dict[str, Any]]:
        self._may_crash("reset")
        return self.env.reset(**settings)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._may_crash("step")
        return self.env.step(action)

    def _may_crash(self, verb: str) -> None:
        assert not self._crashed, "it was used after it had crashed"
        if self._random.random() < self._chances[verb]:
            self._crashed = True
            raise SimulatorCrash(f"in {verb}")


def flaky_cartpole(step: float = 1e-4, reset: float = 1e-3, seed: int = 0) -> gym.Env[Any, Any]:
    """Make a CartPole that crashes now and then."""
    return TimeLimit(Flaky(CartPoleEnv(), step=step, reset=reset, seed=seed), 500)
