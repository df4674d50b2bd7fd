"""The last action and its reward as parts of an observation, for policies that have to know what they did.

An observation gets the entries `last_action`, a vector, and `last_reward`, [1], beside those of its Dict; one that is
no Dict becomes the entry `observation`. At the start of an episode both are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.errors import ConfigError

Array = np.ndarray

LAST_ACTION, LAST_REWARD = "last_action", "last_reward"
OBSERVATION = "observation"
"""The entry of an observation that is no Dict."""


class ActionVectors:
    """Actions as vectors: one-hot if they are discrete, otherwise flattened.

    >>> ActionVectors(spaces.Discrete(3, start=1))(np.array([1, 3])).tolist()
    [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """

    def __init__(self, space: spaces.Space) -> None:
        if not isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.Box, spaces.MultiBinary)):
            raise ConfigError(f"actions of {space} cannot be part of an observation. Set last_action_and_reward false.")
        self._rows: Array | None = None  # the vectors of the values of all discrete parts
        self.size = math.prod(space.shape or ())
        if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
            counts = np.ravel(space.n if isinstance(space, spaces.Discrete) else space.nvec)
            self.size = int(counts.sum())
            self._rows = np.eye(self.size, dtype=np.float32)
            self._first = np.cumsum(counts) - counts - np.ravel(space.start)  # the row of value 0 of each part

    def __call__(self, actions: Array) -> Array:
        """Return the vectors of actions, [B, size]."""
        if self._rows is None:
            return actions.reshape(len(actions), self.size).astype(np.float32)
        parts = actions.reshape(len(actions), -1) + self._first
        return self._rows[parts[:, 0]] if parts.shape[1] == 1 else self._rows[parts].sum(1)


class LastStep:
    """The last action and reward beside the observations of an environment.

    Args:
        observation_space: the environment's own observation space.
        action_space: its action space.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.vectors = ActionVectors(action_space)
        own = dict(observation_space.spaces) if isinstance(observation_space, spaces.Dict) else None
        both = sorted({LAST_ACTION, LAST_REWARD} & set(own or {}))
        if both:
            raise ConfigError(
                f"the observation already has the entry {both[0]!r}. Set last_action_and_reward to false, or rename it."
            )
        self._keys = None if own is None else list(own)
        action = spaces.Box(-np.inf, np.inf, (self.vectors.size,), np.float32)
        reward = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        entries = {OBSERVATION: observation_space} if own is None else own
        self.space = spaces.Dict({**entries, LAST_ACTION: action, LAST_REWARD: reward})
        """The space of observations with both."""

    def env_part(self, obs: Mapping[str, Any]) -> Any:
        """Return the environment's own part of observations."""
        return obs[OBSERVATION] if self._keys is None else {key: obs[key] for key in self._keys}

    def clear(self, obs: Mapping[str, Any], slots: Any) -> None:
        """Set the entries of these slots to those of the start of an episode."""
        obs[LAST_ACTION][slots] = 0
        obs[LAST_REWARD][slots] = 0

    def write(self, obs: Mapping[str, Any], slots: Any, actions: Array, reward: Array) -> None:
        """Set the entries of these slots to the actions and rewards, [B], of a step of all."""
        obs[LAST_ACTION][slots] = self.vectors(actions[slots])
        obs[LAST_REWARD][slots, 0] = reward[slots]
