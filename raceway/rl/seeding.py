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
"""Held while the global generators are in use: trainings in several threads would sample from one another's.

Nothing that may take long, such as an evaluation, may hold it, as other trainings in the process would wait.
"""
_earlier_states: list[_EarlierState] = []
"""The states of the global generators that are to be restored, in the order in which they were replaced."""


class Purpose(enum.IntEnum):
    """What a seed is for. These numbers are part of every result: they never change."""

    ENVIRONMENT = 0
    ACTIONS = 1
    WEIGHTS = 2
    LEARNER = 3
    EVALUATION = 4
    TASKS = 5
    DATASET = 6
    PERTURBATIONS = 7


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

    No other thread can do so meanwhile.

    Args:
        seed: the seed; with None the generators are not seeded, only restored.
    """
    with GLOBAL_GENERATORS_LOCK, seeded_globally_shared(seed):
        yield


@contextmanager
def seeded_globally_shared(seed: int | None) -> Iterator[None]:
    """Seed the global generators, like `seeded_globally`, but let other threads seed them meanwhile.

    They are restored in any case. What is sampled from them in between is repeatable only if no other thread samples
    from them or seeds them at the same time.
    """
    with GLOBAL_GENERATORS_LOCK:
        earlier = _EarlierState()
        _earlier_states.append(earlier)
        if seed is not None:
            _seed_globally(seed)
    try:
        yield
    finally:
        with GLOBAL_GENERATORS_LOCK:
            index = _earlier_states.index(earlier)
            del _earlier_states[index]
            if index == len(_earlier_states):
                earlier.restore()
            else:  # another thread has replaced the state since, and restores this one in its turn
                _earlier_states[index].states = earlier.states


class _EarlierState:
    """The state of the global generators at one time."""

    def __init__(self) -> None:
        import torch  # here, because environments without networks need seeds too

        self.states = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def restore(self) -> None:
        import torch

        random.setstate(self.states[0])
        np.random.set_state(self.states[1])
        torch.set_rng_state(self.states[2])


def _seed_globally(seed: int) -> None:
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # it takes no more bits
    torch.default_generator.manual_seed(seed)
