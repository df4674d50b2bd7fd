"""Seeds: one number for everything that is random, found by what it is for and never by who comes first."""

from __future__ import annotations

import enum

import numpy as np


class Purpose(enum.IntEnum):
    """What random numbers are for. The numbers are part of every result: they never change."""

    ENVIRONMENT = 0
    ACTIONS = 1
    WEIGHTS = 2
    LEARNER = 3
    EVALUATION = 4


def seed_of(seed: int, purpose: Purpose, *path: int) -> int:
    """Return a seed of its own for, say, (shard, slot, episode).

    It has 31 bits: some simulators take no more.

    >>> seed_of(0, Purpose.ENVIRONMENT, 1, 2, 3) != seed_of(0, Purpose.ENVIRONMENT, 1, 2, 4)
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), *path))
    return int(sequence.generate_state(1)[0] >> 1)
