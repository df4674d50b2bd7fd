"""Small environments for tests of slots."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

IMAGE = spaces.Box(0, 255, (6, 5, 3), np.uint8)
SPACES: dict[str, spaces.Space] = {
    "box": spaces.Box(-100, 100, (2, 3)),
    "scalar": spaces.Box(-100, 100, ()),
    "double": spaces.Box(-100, 100, (2,), np.float64),
    "discrete": spaces.Discrete(50, start=3),
    "multidiscrete": spaces.MultiDiscrete([5, 60], start=[0, -2]),
    "multibinary": spaces.MultiBinary(4),
    "image": IMAGE,
    "dict": spaces.Dict({"image": IMAGE, "inner": spaces.Dict({"number": spaces.Discrete(9)})}),
    "tuple": spaces.Tuple([spaces.Discrete(7), spaces.Box(-9, 9, (2,)), spaces.Tuple([spaces.MultiBinary(2)])]),
}


class Samples(gym.Env[Any, Any]):
    """Returns samples of a space as observations, determined by the seed of the episode."""

    def __init__(self, space: spaces.Space, action_space: spaces.Space | None = None, length: int = 4) -> None:
        self.observation_space = space
        self.action_space = action_space or spaces.Discrete(3)
        self.length = length
        self.actions: list[Any] = []
        self.observations: list[Any] = []
        """All observations since the environment was made."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.now = 0
        return self._next_obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.actions.append(action)
        self.now += 1
        return self._next_obs(), float(self.now), False, self.now == self.length, {}

    def _next_obs(self) -> Any:
        self.observations.append(self.observation_space.sample())
        return self.observations[-1]


def as_tree(value: Any) -> Any:
    """Return an observation with mappings instead of tuples, as in the arrays."""
    if isinstance(value, dict):
        return {key: as_tree(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return {str(index): as_tree(part) for index, part in enumerate(value)}
    return value


def assert_same(actual: Any, expected: Any) -> None:
    """Compare two trees, to the precision of 32-bit floats."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key])
    else:
        np.testing.assert_allclose(actual, expected, rtol=1e-6)
        assert np.shape(actual) == np.shape(expected)
