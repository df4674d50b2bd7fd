"""Replay: TorchRL's buffer in one or several services, and how an iteration's samples are divided over them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torchrl.data import ReplayBuffer
from torchrl.data.replay_buffers.samplers import RandomSampler
from torchrl.data.replay_buffers.writers import ImmutableDatasetWriter

from raceway.errors import ReplayEmpty
from raceway.torchrl import LocalStorage, ObjectStorage
from raceway.torchrl.appending import Columns


def work(rounds: int) -> int:
    """Compute for as long as there are rounds, each one number of the generator SplitMix64; return the last.

    >>> hex(work(2))
    '0x6e789e6aa1b965f4'
    """
    state = number = 0
    for _ in range(rounds):
        state = number = (state + 0x9E3779B97F4A7C15) % 2**64
        number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
        number ^= number >> 31
    return number


class Costly:
    """Has a storage take its time over every row that is drawn, as if rows had to be decompressed or fetched.

    It gives them as arrays: they travel as they are, and become a TensorDict where they are used.
    """

    sample_work = 0
    """Rounds of arithmetic for each row."""
    sample_wait = 0.0
    """Milliseconds to wait for each row."""

    def get(self, index: Any) -> Any:
        """Return rows, after some time."""
        if isinstance(index, slice):
            return super().get(index)
        index = np.asarray(index)
        if self.sample_work:
            for _ in range(index.size):
                work(self.sample_work)
        if self.sample_wait:
            time.sleep(index.size * self.sample_wait / 1000)
        return self.columns(index)


class CostlyLocalStorage(Costly, LocalStorage):
    """Rows of this process."""


class CostlyObjectStorage(Costly, ObjectStorage):
    """Rows behind an object of the Runner."""


class ReplayShard:
    """A replay buffer that is drawn from. Collectors append to its storage."""

    def __init__(self, storage: CostlyLocalStorage | CostlyObjectStorage, number: int) -> None:
        self.storage, self.number = storage, number
        self.buffer: ReplayBuffer | None = None  # made where it is used

    def start(self) -> None:
        """Make the buffer, having drawn from another like it: the first time takes long."""
        self.random = torch.Generator()
        example = CostlyLocalStorage(1)
        example.append({"observation": np.zeros((1, 1)), "next": {"reward": np.zeros((1, 1))}})
        make_buffer(example, self.random).sample(1)
        self.buffer = make_buffer(self.storage, self.random)

    def size(self) -> int:
        """Return how many frames it holds, having read those that are new."""
        self.storage.refresh()
        return len(self.storage)

    def sample(self, num: int, seed: int) -> Columns:
        """Draw so many frames; the same ones for the same seed."""
        if self.buffer is None:
            self.start()
        if not len(self.storage) and not self.size():
            raise ReplayEmpty(f"replay shard {self.number} holds no frames yet. Collect some before you sample.")
        self.random.manual_seed(seed)
        return self.buffer.sample(num)


def make_buffer(storage: Any, random: torch.Generator) -> ReplayBuffer:
    """Make a buffer that is only drawn from."""
    return ReplayBuffer(storage=storage, sampler=RandomSampler(), writer=ImmutableDatasetWriter(), generator=random)


class Request(NamedTuple):
    """How much to draw from which shard."""

    shard: int
    num: int


class SamplingPlan:
    """Divides batches over shards in rotation. A shard with more frames has its turn more often.

    So every frame is drawn as often as any other, and from shards of one size they are drawn in turn.
    """

    def __init__(self, batch_size: int, parallelism: int) -> None:
        each, rest = divmod(batch_size, parallelism)
        self.parts = [each + (part < rest) for part in range(parallelism)]
        self.credit: list[float] = []  # frames that each shard has still to give

    def next(self, sizes: Sequence[int]) -> list[Request]:
        """Return the requests for one batch from shards that hold so many frames."""
        total, credit = sum(sizes), self.credit or [0.0] * len(sizes)
        if not total:
            raise ReplayEmpty(f"none of {len(sizes)} replay shards holds a frame yet. Collect some before you sample.")
        requests = []
        for num in self.parts:
            for shard, size in enumerate(sizes):
                credit[shard] += num * size / total
            chosen = max((shard for shard, size in enumerate(sizes) if size), key=credit.__getitem__)
            credit[chosen] -= num
            requests.append(Request(chosen, num))
        self.credit = credit
        return requests


def shard_sizes(buffer_size: int, num_shards: int) -> list[int]:
    """Divide the buffer's size over its shards."""
    each, rest = divmod(buffer_size, num_shards)
    return [each + (shard < rest) for shard in range(num_shards)]
