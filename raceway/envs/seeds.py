"""Seeds: one number for everything that is random, found by what it is for and never by who comes first."""

from __future__ import annotations

import enum
from functools import lru_cache

import numpy as np


class Purpose(enum.IntEnum):
    """What random numbers are for. The numbers are part of every result: they never change."""

    ENVIRONMENT = 0
    ACTIONS = 1
    WEIGHTS = 2
    LEARNER = 3
    EVALUATION = 4
    TASKS = 5


def seed_of(seed: int, purpose: Purpose, *path: int) -> int:
    """Return a seed of its own for, say, (shard, slot, episode).

    It has 31 bits: some simulators take no more.

    >>> seed_of(0, Purpose.ENVIRONMENT, 1, 2, 3) != seed_of(0, Purpose.ENVIRONMENT, 1, 2, 4)
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))
    return int(sequence.generate_state(1)[0] >> 1)


def seed_of_episode(seed: int, shard: int, slot: int, episode: int) -> int:
    """Return the seed that an episode begins with.

    They are made for many episodes of a slot at once: one by one, that takes as long as twenty steps of CartPole.

    >>> seed_of_episode(0, 1, 2, 63) != seed_of_episode(0, 1, 2, 64)
    True
    """
    return _seeds_of_block(seed, shard, slot, episode // _BLOCK)[episode % _BLOCK]


_BLOCK = 64  # as Purpose, part of every result


@lru_cache(maxsize=4096)
def _seeds_of_block(seed: int, shard: int, slot: int, block: int) -> list[int]:
    sequence = np.random.SeedSequence(seed, spawn_key=(int(Purpose.ENVIRONMENT), shard, slot, block))
    return [int(number) for number in sequence.generate_state(_BLOCK) >> 1]
