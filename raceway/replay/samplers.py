"""Samplers of replay rows: uniform, or in proportion to priority."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.replay.sum_tree import SumTree
from raceway.rl.schedules import LinearSchedule

Array = np.ndarray


class UniformSampler:
    """Samples rows uniformly."""

    def sample(self, random: np.random.Generator, num: int, first: int, end: int) -> tuple[Array, dict[str, Array]]:
        """Sample `num` row numbers from [first, end), and return them with further columns for the batch."""
        return random.integers(first, end, num), {}

    def on_insert(self, first: int, end: int) -> None:
        """Handle the insertion of rows [first, end)."""

    def on_evict(self, first: int, end: int) -> None:
        """Handle the eviction of rows [first, end), before others are inserted."""

    def update(self, index: Array, priorities: Array) -> None:
        """Raise ConfigError: there are no priorities."""
        raise ConfigError("a uniform replay buffer has no priorities. Create it with alpha, for example alpha=0.6.")

    def state(self, used: int) -> Any:
        """Return the state for a checkpoint."""

    def restore(self, state: Any, used: int) -> None:
        """Restore a state."""


class PrioritizedSampler:
    """Samples rows in proportion to p^α (Schaul et al. 2016, https://arxiv.org/abs/1511.05952).

    Args:
        capacity: the largest number of rows.
        alpha: the exponent α of priorities.
        beta: the exponent β of importance weights; or a schedule of it over the number of rows inserted so far.
    """

    def __init__(self, capacity: int, alpha: float, beta: float | LinearSchedule) -> None:
        if not 0 <= alpha <= 1:
            raise ConfigError(f"alpha must be a number from 0 to 1, not {alpha!r}")
        self.capacity, self.alpha = capacity, alpha
        self.beta = beta if isinstance(beta, LinearSchedule) else LinearSchedule(beta, beta, 1)
        self.tree = SumTree(capacity)
        self.highest = 1.0  # priority so far, which new rows get

    def sample(self, random: np.random.Generator, num: int, first: int, end: int) -> tuple[Array, dict[str, Array]]:
        """Sample `num` row numbers, and return them with their importance weights as `weight`."""
        # Stratified: one from each of `num` equal parts of the sum, which has the same distribution and less variance.
        targets = (np.arange(num) + random.random(num)) * (self.tree.total / num)
        positions = self.tree.find(targets)
        weights = self.tree.values[positions] ** -self.beta(end)
        return end - 1 - (end - 1 - positions) % self.capacity, {"weight": (weights / weights.max()).astype(np.float32)}

    def on_insert(self, first: int, end: int) -> None:
        """Give new rows the highest priority so far."""
        self.tree.put(np.arange(first, end) % self.capacity, self.highest**self.alpha)

    def on_evict(self, first: int, end: int) -> None:
        """Set the priorities of evicted rows to 0."""
        self.tree.put(np.arange(max(first, end - self.capacity), end) % self.capacity, 0.0)

    def update(self, index: Array, priorities: Array) -> None:
        """Set the priorities of rows."""
        priorities = np.asarray(priorities, float)
        invalid = ~np.isfinite(priorities) | (priorities < 0)
        if invalid.any():
            raise ConfigError(f"a priority must be a finite number of at least 0, not {priorities[invalid][0]}")
        priorities = priorities + 1e-6  # else a row with priority 0 would never be sampled again
        if len(priorities):
            self.highest = max(self.highest, float(priorities.max()))
            self.tree.put(index % self.capacity, priorities**self.alpha)

    def state(self, used: int) -> Any:
        """Return the state for a checkpoint."""
        return {"highest": self.highest, "priorities": self.tree.values[:used].copy()}

    def restore(self, state: Any, used: int) -> None:
        """Restore a state."""
        self.highest = state["highest"]
        self.tree.put(np.arange(used), state["priorities"])
