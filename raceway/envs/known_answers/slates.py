"""A small recommender: slates of items, a user who chooses one or none, and satisfaction that depends on choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.checks import check_fraction, check_int
from raceway.errors import ConfigError
from raceway.rl.slates import all_slates

Array = np.ndarray

_SCORES = (3.0, 2.6, 2.2, 1.8, 1.2, 1.0, 0.8, 0.9, 0.7, 0.5)
_ENGAGEMENT = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.45, 0.4, 0.35)
_DRIFT = (-1, -1, -1, -1, 0, 0, 0, 1, 1, 1)
_NULL_SCORE = 1.0


class Slates(gym.Env):
    """Items that are tempting lower a user's satisfaction, on which all rewards depend; others raise it.

    An action is the number of a slate (`slates`). The user chooses item i of it with a probability in proportion to its
    score, or nothing, whose score is 1. The reward of an item is its engagement, times (level + 1) / num_levels of the
    satisfaction before, and then the level changes by the item's drift. Nothing chosen gives 0 and changes nothing.

    An observation has the level as `user`, the scores as `choice_scores` (the last is that of nothing), and as `chosen`
    the item that was chosen of the slate before, the number of items for nothing. Episodes are truncated, so that
    values are those of an infinite horizon.

    Args:
        slate_size: the number of items on a slate.
        num_levels: the number of levels of satisfaction.
        length: the number of steps of an episode.
        scores: the score of every item.
        engagement: the reward of every item for a satisfied user.
        drift: the change of the level by every item.
    """

    def __init__(
        self,
        slate_size: int = 2,
        num_levels: int = 5,
        length: int = 20,
        scores: Sequence[float] = _SCORES,
        engagement: Sequence[float] = _ENGAGEMENT,
        drift: Sequence[int] = _DRIFT,
    ) -> None:
        if not len(scores) == len(engagement) == len(drift) >= check_int("slate_size", slate_size):
            raise ConfigError(
                f"scores, engagement and drift need one number for each item, and as many as a slate of {slate_size} "
                f"has, not {len(scores)}, {len(engagement)} and {len(drift)}"
            )
        self.num_items, self.slates = len(scores), all_slates(len(scores), slate_size)
        """The number of items, and the items of every slate, [S, k]."""
        self.num_levels, self.length = check_int("num_levels", num_levels), check_int("length", length)
        self.scores = np.array([*scores, _NULL_SCORE], np.float32)
        self.engagement, self.drift = np.array([*engagement, 0.0]), np.array([*drift, 0])
        self.observation_space = spaces.Dict({
            "user": spaces.Discrete(num_levels),
            "choice_scores": spaces.Box(0, np.inf, self.scores.shape, np.float32),
            "chosen": spaces.Discrete(self.num_items + 1),
        })  # fmt: skip
        self.action_space = spaces.Discrete(len(self.slates))
        self._level, self._chosen, self._num_steps = 0, self.num_items, 0

    @property
    def choice_probabilities(self) -> Array:
        """The probabilities P(i|A) of all items and of nothing, for every slate, [S, n + 1]."""
        offered = np.zeros((len(self.slates), self.num_items + 1))
        np.put_along_axis(offered, self.slates, 1, axis=1)
        offered[:, -1] = 1
        weights = offered * self.scores
        return weights / weights.sum(1, keepdims=True)

    def item_values(self, gamma: float) -> Array:
        """Return Q̄ of every level and item, and of nothing, [num_levels, n + 1], for the best slates afterwards."""
        if check_fraction("discount factor", gamma) == 1:
            raise ConfigError("with a discount factor of 1, values of an infinite horizon are infinite. Lower it.")
        values, before = self._item_values(np.zeros(self.num_levels), gamma), np.full(1, np.inf)
        while np.abs(values - before).max() > 1e-12:
            before, values = values, self._item_values(self._best(values), gamma)
        return values

    def slate_values(self, gamma: float) -> Array:
        """Return Q of every level and slate, [num_levels, S]."""
        return self.item_values(gamma) @ self.choice_probabilities.T

    def mean_return(self, gamma: float) -> float:
        """Return the mean return of an episode with the slates that are best by a discount; with 0 the myopic ones."""
        probabilities = self.choice_probabilities[self.slate_values(gamma).argmax(1)]
        values = np.zeros(self.num_levels)
        for _ in range(self.length):
            values = (self._item_values(values, 1.0) * probabilities).sum(1)
        return float(values.mean())

    def _item_values(self, next_values: Array, gamma: float) -> Array:
        level = np.arange(self.num_levels)[:, None]
        rewards = self.engagement * (level + 1) / self.num_levels
        total: Array = rewards + gamma * next_values[self._next_level(level, self.drift)]
        return total

    def _best(self, item_values: Array) -> Array:
        best: Array = (item_values @ self.choice_probabilities.T).max(1)
        return best

    def _next_level(self, level: Any, drift: Any) -> Any:
        return np.clip(level + drift, 0, self.num_levels - 1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._level, self._chosen, self._num_steps = int(self.np_random.integers(self.num_levels)), self.num_items, 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        offered = [*self.slates[int(action)].tolist(), self.num_items]
        weights = self.scores[offered].astype(float)
        self._chosen = offered[int(self.np_random.choice(len(offered), p=weights / weights.sum()))]
        reward = float(self.engagement[self._chosen]) * (self._level + 1) / self.num_levels
        self._level = int(self._next_level(self._level, self.drift[self._chosen]))
        self._num_steps += 1
        return self._obs(), reward, False, self._num_steps == self.length, {}

    def _obs(self) -> dict[str, Any]:
        return {"user": self._level, "choice_scores": self.scores.copy(), "chosen": self._chosen}
