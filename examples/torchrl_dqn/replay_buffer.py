"""Replay: TorchRL's replay buffer in one or more shards, and how a batch is divided over them."""

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
from raceway.torchrl.appending import FlatBatch


def work(rounds: int) -> int:
    """Keep the CPU busy: compute `rounds` numbers of the random generator SplitMix64, and return the last.

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


class SlowSampling:
    """Mixin that makes sampling a row take time, as if rows had to be decompressed or fetched.

    Rows are returned as arrays: these are sent as they are, and become a TensorDict in the learner.
    """

    sample_work = 0
    """Rounds of arithmetic for each sampled row."""
    sample_wait = 0.0
    """Milliseconds to wait for each sampled row."""

    def get(self, index: Any) -> Any:
        """Return rows, after the work and waiting that each of them costs."""
        if isinstance(index, slice):
            return super().get(index)
        index = np.asarray(index)
        if self.sample_work:
            for _ in range(index.size):
                work(self.sample_work)
        if self.sample_wait:
            time.sleep(index.size * self.sample_wait / 1000)
        return self.columns(index)


class SlowLocalStorage(SlowSampling, LocalStorage):
    """Rows of this process."""


class SlowObjectStorage(SlowSampling, ObjectStorage):
    """Rows behind an object of the Runner."""


class ReplayShard:
    """A replay buffer to sample from. Collectors append to its storage."""

    def __init__(self, storage: SlowLocalStorage | SlowObjectStorage, number: int) -> None:
        self.storage, self.number = storage, number
        self.buffer: ReplayBuffer | None = None  # created in the process that samples

    def start(self) -> None:
        """Create the buffer, after sampling from a small one, because the first sample of a process is slow."""
        self.generator = torch.Generator()
        storage = SlowLocalStorage(1)
        storage.append({"observation": np.zeros((1, 1)), "next": {"reward": np.zeros((1, 1))}})
        make_buffer(storage, self.generator).sample(1)
        self.buffer = make_buffer(self.storage, self.generator)

    def size(self) -> int:
        """Fetch new frames, and return the number of frames."""
        self.storage.refresh()
        return len(self.storage)

    def sample(self, num: int, seed: int) -> FlatBatch:
        """Sample `num` frames; the same seed gives the same frames."""
        if self.buffer is None:
            self.start()
        if not len(self.storage) and not self.size():
            raise ReplayEmpty(f"replay shard {self.number} holds no frames yet. Collect some before you sample.")
        self.generator.manual_seed(seed)
        return self.buffer.sample(num)


def make_buffer(storage: Any, generator: torch.Generator) -> ReplayBuffer:
    """Create a buffer that is sampled from and never written to."""
    return ReplayBuffer(storage=storage, sampler=RandomSampler(), writer=ImmutableDatasetWriter(), generator=generator)


class SampleRequest(NamedTuple):
    """The number of frames to sample from a shard."""

    shard: int
    num: int


class SamplingPlan:
    """Divides batches over shards in rotation; a shard with more frames has its turn more often.

    So all frames are equally likely to be sampled, and shards of equal size are sampled in turn.
    """

    def __init__(self, batch_size: int, parallelism: int) -> None:
        quotient, remainder = divmod(batch_size, parallelism)
        self.part_sizes = [quotient + (part < remainder) for part in range(parallelism)]
        self.credit: list[float] = []  # frames due from each shard

    def next(self, sizes: Sequence[int]) -> list[SampleRequest]:
        """Return the requests for one batch.

        Args:
            sizes: the number of frames in each shard.
        """
        total, credit = sum(sizes), self.credit or [0.0] * len(sizes)
        if not total:
            raise ReplayEmpty(f"none of {len(sizes)} replay shards holds a frame yet. Collect some before you sample.")
        requests = []
        for num in self.part_sizes:
            for shard, size in enumerate(sizes):
                credit[shard] += num * size / total
            next_shard = max((shard for shard, size in enumerate(sizes) if size), key=credit.__getitem__)
            credit[next_shard] -= num
            requests.append(SampleRequest(next_shard, num))
        self.credit = credit
        return requests


def shard_sizes(buffer_size: int, num_shards: int) -> list[int]:
    """Divide the buffer size over the shards."""
    quotient, remainder = divmod(buffer_size, num_shards)
    return [quotient + (shard < remainder) for shard in range(num_shards)]
