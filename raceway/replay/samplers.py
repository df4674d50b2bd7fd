"""Which rows of a replay buffer are drawn: any, or those of high priority more often."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.replay.sum_tree import SumTree

Array = np.ndarray


class UniformSampler:
    """Draws any row."""

    def draw(self, random: np.random.Generator, num: int, first: int, end: int) -> tuple[Array, dict[str, Array]]:
        """Return the numbers of rows, from `first` to before `end`, and columns to add to them."""
        return random.integers(first, end, num), {}

    def added(self, first: int, end: int) -> None:
        """Take note of new rows."""

    def left(self, first: int, end: int) -> None:
        """Take note of rows that have left before others took their places."""

    def update(self, index: Array, priorities: Array) -> None:
        """Refuse priorities."""
        raise ConfigError("a uniform replay buffer has no priorities. Make it with alpha=0.6, or the like.")

    def state(self, used: int) -> Any:
        """Return what is needed to go on from here."""

    def restore(self, state: Any, used: int) -> None:
        """Go on from there."""


class PrioritizedSampler:
    """Draws rows in proportion to p^α (Schaul et al. 2016, https://arxiv.org/abs/1511.05952), of rows in a ring."""

    def __init__(self, capacity: int, alpha: float, beta: float) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha must be a number from 0 to 1, not {alpha!r}")
        self.capacity, self.alpha, self.beta = capacity, alpha, beta
        self.tree = SumTree(capacity)
        self.highest = 1.0  # of the priorities so far, which new rows get

    def draw(self, random: np.random.Generator, num: int, first: int, end: int) -> tuple[Array, dict[str, Array]]:
        """Return the numbers of rows, and as `weight` what makes up for how often they are drawn."""
        # One from each of `num` equal parts of the sum: as likely, and more even.
        targets = (np.arange(num) + random.random(num)) * (self.tree.total / num)
        places = self.tree.find(targets)
        weights = self.tree.values[places] ** -self.beta
        return end - 1 - (end - 1 - places) % self.capacity, {"weight": (weights / weights.max()).astype(np.float32)}

    def added(self, first: int, end: int) -> None:
        """Give new rows the highest priority there was."""
        self.tree.put(np.arange(first, end) % self.capacity, self.highest**self.alpha)

    def left(self, first: int, end: int) -> None:
        """Draw some rows no more."""
        self.tree.put(np.arange(max(first, end - self.capacity), end) % self.capacity, 0.0)

    def update(self, index: Array, priorities: Array) -> None:
        """Give rows new priorities."""
        priorities = np.asarray(priorities, float)
        bad = ~np.isfinite(priorities) | (priorities < 0)
        if bad.any():
            raise ConfigError(f"a priority is a number from 0, not {priorities[bad][0]}")
        priorities = priorities + 1e-6  # or a row could never be drawn again
        if len(priorities):
            self.highest = max(self.highest, float(priorities.max()))
            self.tree.put(index % self.capacity, priorities**self.alpha)

    def state(self, used: int) -> Any:
        """Return what is needed to go on from here."""
        return {"highest": self.highest, "priorities": self.tree.values[:used].copy()}

    def restore(self, state: Any, used: int) -> None:
        """Go on from there."""
        self.highest = state["highest"]
        self.tree.put(np.arange(used), state["priorities"])
