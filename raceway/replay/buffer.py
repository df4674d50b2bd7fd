"""A replay buffer: the newest rows of experience, drawn from uniformly or by priority."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.checks import check_int
from raceway.errors import ConfigError, ReplayEmpty
from raceway.replay.frames import FrameStorage
from raceway.replay.samplers import PrioritizedSampler, UniformSampler
from raceway.replay.storage import ReplayStorage, num_rows
from raceway.rl.batch import Batch, tree_map

Array = np.ndarray


class Replay:
    """Holds the newest `capacity` rows. A row is a transition, a sequence, or whatever the columns of batches have.

    Rows are numbered as they come in; a sample says the numbers of its rows as `index`.

    >>> replay = Replay(100, seed=0)
    >>> replay.insert({"obs": np.arange(5.0), "reward": np.ones(5)})
    >>> sorted(replay.sample(2))
    ['index', 'obs', 'reward']

    Args:
        capacity: rows that it holds.
        seed: of what is drawn.
        alpha: how much priorities count (Schaul et al. 2016, α): 0 not at all, 1 in proportion. Without it, rows are
            drawn uniformly.
        beta: how far `weight`, which a sample then has, makes up for that (β).
        stacked: whether `obs` and `next_obs` are stacks of frames, [K, ...], whose frames are to be stored once.
    """

    def __init__(
        self, capacity: int, *, seed: int = 0, alpha: float | None = None, beta: float = 0.4, stacked: bool = False
    ) -> None:
        self.capacity = check_int("capacity", capacity)
        self.next = 0  # the number of the next row
        self.first = 0  # that of the oldest
        self.random = np.random.default_rng(seed)
        self.columns: ReplayStorage = FrameStorage(capacity) if stacked else ReplayStorage(capacity)
        self.drawing: UniformSampler | PrioritizedSampler = (
            UniformSampler() if alpha is None else PrioritizedSampler(capacity, alpha, beta)
        )

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def inserted(self) -> int:
        """How many rows were put in."""
        return self.next

    @property
    def evicted(self) -> int:
        """How many had to leave for newer ones."""
        return self.first

    def insert(self, batch: Batch, priorities: Array | None = None) -> None:
        """Put in the rows of a batch. The oldest leave."""
        num = num_rows(batch)
        if num == 0:
            return
        skipped = max(num - self.capacity, 0)  # these would leave at once
        begin, end = self.next + skipped, self.next + num
        self.columns.write(tree_map(lambda column: column[skipped:], batch), begin)
        oldest = self.columns.first_whole(max(end - self.capacity, self.first), end)
        self.drawing.left(self.first, min(oldest, self.next))
        self.drawing.added(max(begin, oldest), end)
        self.first, self.next = oldest, end
        if priorities is not None:
            self.update(np.arange(begin, end), priorities[skipped:])

    def sample(self, num: int) -> Batch:
        """Draw so many rows, with replacement."""
        if not len(self):
            raise ReplayEmpty("nothing can be drawn from a replay buffer that holds nothing yet. Insert rows first.")
        numbers, more = self.drawing.draw(self.random, num, self.first, self.next)
        return {**self.columns.read(numbers % self.capacity), "index": numbers, **more}

    def update(self, index: Array, priorities: Array) -> None:
        """Give the rows of these numbers new priorities. Those that have left are passed over."""
        there = index >= self.first
        self.drawing.update(index[there], np.asarray(priorities)[there])

    def state(self) -> Any:
        """Return what is needed to go on from here, exactly."""
        used = min(self.next, self.capacity)
        about = {"capacity": self.capacity, "first": self.first, "next": self.next}
        kept = {"columns": self.columns.state(used), "drawing": self.drawing.state(used)}
        return {**about, **kept, "random": self.random.bit_generator.state}

    def restore(self, state: Any) -> None:
        """Go on from there."""
        if state["capacity"] != self.capacity:
            raise ConfigError(
                f"the state is of a replay buffer of a capacity of {state['capacity']}, and this has one of "
                f"{self.capacity}. Make one of the same size."
            )
        self.first, self.next = state["first"], state["next"]
        used = min(self.next, self.capacity)
        self.columns.restore(state["columns"], used)
        self.drawing.restore(state["drawing"], used)
        self.random.bit_generator.state = state["random"]
