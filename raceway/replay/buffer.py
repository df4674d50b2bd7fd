"""A replay buffer: the newest rows of experience, sampled uniformly or by priority."""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.checks import check_int
from raceway.errors import ConfigError, ReplayEmpty
from raceway.replay.frame_storage import FrameStorage
from raceway.replay.hindsight import Hindsight
from raceway.replay.samplers import PrioritizedSampler, UniformSampler
from raceway.replay.storage import ReplayStorage, common_length
from raceway.rl.batch import Batch, tree_map
from raceway.rl.schedules import LinearSchedule

Array = np.ndarray


class Replay:
    """Holds the newest `capacity` rows. A row is a transition, a sequence, or any other row of a batch.

    Rows are numbered in the order of insertion; a sample has the numbers of its rows as `index`.

    >>> replay = Replay(100, seed=0)
    >>> replay.insert({"obs": np.arange(5.0), "reward": np.ones(5)})
    >>> sorted(replay.sample(2))
    ['index', 'obs', 'reward']

    Args:
        capacity: the largest number of rows.
        seed: the seed for sampling.
        alpha: the exponent α of priorities (Schaul et al. 2016), from 0 for uniform to 1 for proportional sampling.
            Without it, sampling is uniform and there are no priorities.
        beta: the exponent β of the importance weights, which a prioritised sample has as `weight`; or a schedule of it
            over the number of rows inserted so far.
        stacked: whether `obs` and `next_obs` are stacks of frames, [K, ...], of which each frame is stored only once.
        hindsight: replaces goals of sampled rows. Rows are then transitions of whole episodes, which are inserted at
            once; see `rl.episode_transitions`.
    """

    def __init__(
        self,
        capacity: int,
        *,
        seed: int = 0,
        alpha: float | None = None,
        beta: float | LinearSchedule = 0.4,
        stacked: bool = False,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.capacity = check_int("capacity", capacity)
        self.next = 0  # number of the next row
        self.first = 0  # number of the oldest row
        self.random = np.random.default_rng(seed)
        self.hindsight = hindsight
        self.storage: ReplayStorage = FrameStorage(capacity) if stacked else ReplayStorage(capacity)
        self.sampler: UniformSampler | PrioritizedSampler = (
            UniformSampler() if alpha is None else PrioritizedSampler(capacity, alpha, beta)
        )

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def inserted(self) -> int:
        """The number of rows inserted so far."""
        return self.next

    @property
    def evicted(self) -> int:
        """The number of rows overwritten by newer ones."""
        return self.first

    def insert(self, batch: Batch, priorities: Array | None = None) -> None:
        """Insert the rows of a batch, and evict the oldest rows if there is no room."""
        num = common_length(batch)
        if num == 0:
            return
        skipped = max(num - self.capacity, 0)  # these would be evicted at once
        begin, end = self.next + skipped, self.next + num
        self.storage.write(tree_map(lambda column: column[skipped:], batch), begin)
        oldest = self.storage.first_complete(max(end - self.capacity, self.first), end)
        self.sampler.on_evict(self.first, min(oldest, self.next))
        self.sampler.on_insert(max(begin, oldest), end)
        self.first, self.next = oldest, end
        if priorities is not None:
            self.update(np.arange(begin, end), priorities[skipped:])

    def sample(self, num: int) -> Batch:
        """Sample `num` rows, with replacement."""
        if not len(self):
            raise ReplayEmpty("cannot sample from an empty replay buffer. Insert rows first.")
        numbers, columns = self.sampler.sample(self.random, num, self.first, self.next)
        batch = self.storage.read(numbers % self.capacity)
        if self.hindsight is not None:
            batch = self.hindsight.relabel(batch, numbers, self.storage, self.first, self.random)
        return {**batch, "index": numbers, **columns}

    def update(self, index: Array, priorities: Array) -> None:
        """Set the priorities of the rows with these numbers. Rows that were evicted are skipped."""
        present = index >= self.first
        self.sampler.update(index[present], np.asarray(priorities)[present])

    def state(self) -> Any:
        """Return the whole state, from which sampling continues exactly."""
        used = min(self.next, self.capacity)
        sizes = {"capacity": self.capacity, "first": self.first, "next": self.next}
        parts = {"storage": self.storage.state(used), "sampler": self.sampler.state(used)}
        return {**sizes, **parts, "random": self.random.bit_generator.state}

    def restore(self, state: Any) -> None:
        """Restore a state."""
        if state["capacity"] != self.capacity:
            raise ConfigError(
                f"the state is that of a replay buffer with a capacity of {state['capacity']}, and this one has "
                f"{self.capacity}. Make a buffer of the same capacity."
            )
        self.first, self.next = state["first"], state["next"]
        used = min(self.next, self.capacity)
        self.storage.restore(state["storage"], used)
        self.sampler.restore(state["sampler"], used)
        self.random.bit_generator.state = state["random"]
