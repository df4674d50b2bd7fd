"""Seeds for everything that is random, derived from its purpose and never from the order of execution."""

from __future__ import annotations

import enum
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

GLOBAL_GENERATORS_LOCK = threading.RLock()
"""Held while the global generators are in use: trainings in several threads would sample from one another's."""


class Purpose(enum.IntEnum):
    """What a seed is for. These numbers are part of every result: they never change."""

    ENVIRONMENT = 0
    ACTIONS = 1
    WEIGHTS = 2
    LEARNER = 3
    EVALUATION = 4
    TASKS = 5


def derive_seed(seed: int, purpose: Purpose, *path: int) -> int:
    """Return the seed for a purpose and a path, such as (shard, slot, episode).

    It has 31 bits, as some simulators take no more.

    >>> derive_seed(0, Purpose.ENVIRONMENT, 1, 2, 3) != derive_seed(0, Purpose.ENVIRONMENT, 1, 2, 4)
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))
    return int(sequence.generate_state(1)[0] >> 1)


def episode_seed(seed: int, shard: int, slot: int, episode: int) -> int:
    """Return the seed of an episode.

    Seeds are computed for a block of episodes at once: a single one takes as long as twenty steps of CartPole.

    >>> episode_seed(0, 1, 2, 63) != episode_seed(0, 1, 2, 64)
    True
    """
    return _seeds_of_block(seed, shard, slot, episode // _BLOCK)[episode % _BLOCK]


_BLOCK = 64  # like Purpose, part of every result


@lru_cache(maxsize=4096)
def _seeds_of_block(seed: int, shard: int, slot: int, block: int) -> list[int]:
    sequence = np.random.SeedSequence(seed, spawn_key=(int(Purpose.ENVIRONMENT), shard, slot, block))
    return [int(number) for number in sequence.generate_state(_BLOCK) >> 1]


@contextmanager
def seeded_globally(seed: int | None) -> Iterator[None]:
    """Seed the global generators of torch, numpy and Python, which networks and environments may use, for a while.

    Args:
        seed: the seed; with None the generators are not seeded, only restored.
    """
    import torch  # here, because environments without networks need seeds too

    with GLOBAL_GENERATORS_LOCK, torch.random.fork_rng(devices=[]):
        states = random.getstate(), np.random.get_state()
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])
