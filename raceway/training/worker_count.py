"""How many workers an environment is worth: measured, then reasoned, and told."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from raceway.envs import EnvSettings, Purpose, Slots, SteppedSlots, make_slots, seed_of
from raceway.formatting import format_count, format_duration
from raceway.rl import empty, interquartile_mean

_LOOK_SECONDS = 0.25
_MOST_STEPS = 200
WORTH_SENDING = 25e-6
"""Seconds: environments whose step takes less are played in the driver. There the policy and the learner take most of
the time, and a worker's start takes longer than many iterations."""


@dataclass(frozen=True)
class StepCost:
    """What one step of one environment takes."""

    wall: float
    """Seconds."""
    cpu: float
    """Seconds of computing; the rest is waiting."""


def measure_step(env: EnvSettings, like: Slots, slots_per_shard: int) -> StepCost:
    """Step an environment, which is then thrown away, with random actions for a moment.

    Args:
        env: the environment.
        like: slots of it that were made before, which say whether it is a vector by itself.
        slots_per_shard: how wide that vector will be.
    """
    slots = make_slots(env, 1 if isinstance(like, SteppedSlots) else slots_per_shard)
    try:
        obs = empty(slots.observation_space, (slots.num,))
        reward, ended = np.zeros(slots.num, np.float32), np.zeros((2, slots.num), bool)
        everyone = list(range(slots.num))
        slots.action_space.seed(0)
        drawn = [[slots.action_space.sample() for _ in everyone] for _ in range(_MOST_STEPS)]
        slots.reset(everyone, [seed_of(0, Purpose.EVALUATION, slot) for slot in everyone], obs)
        slots.step(np.array(drawn[0]), everyone, obs, reward, ended)  # the first one is often slower
        walls: list[float] = []
        cpus: list[float] = []
        episode = 0
        while len(walls) < _MOST_STEPS and (sum(walls) < _LOOK_SECONDS or len(walls) < 2):
            over = np.flatnonzero(ended.any(0)).tolist()
            if over:
                episode += 1
                slots.reset(over, [seed_of(0, Purpose.EVALUATION, slot, episode) for slot in over], obs)
                ended[:] = False
            began, computed = time.perf_counter(), time.process_time()
            slots.step(np.array(drawn[len(walls)]), everyone, obs, reward, ended)
            walls.append(time.perf_counter() - began)
            cpus.append(time.process_time() - computed)
    finally:
        slots.close()
    # Not the mean: one step in which another program had the core would stand for hundreds.
    return StepCost(interquartile_mean(walls) / slots.num, interquartile_mean(cpus) / slots.num)


def choose_workers(cost: StepCost, cores: int, num_shards: int) -> tuple[int, str]:
    """Return how many workers to start, none for playing in the driver, and why.

    >>> choose_workers(StepCost(wall=4e-6, cpu=4e-6), cores=2, num_shards=10)
    (0, 'no workers: a step of the environment takes 4 µs, and starting workers would take longer than they save')
    >>> choose_workers(StepCost(wall=1e-3, cpu=1e-3), cores=2, num_shards=10)
    (2, '2 workers: a step of the environment takes 1 ms of computing, so one for each of 2 cores')
    >>> choose_workers(StepCost(wall=5e-2, cpu=1e-4), cores=2, num_shards=10)
    (10, '10 workers: a step of the environment takes 50 ms, mostly waiting, so one for each of 10 shards')
    """
    took = f"a step of the environment takes {format_duration(cost.wall)}"
    if cost.wall < WORTH_SENDING:
        return 0, f"no workers: {took}, and starting workers would take longer than they save"
    busy = max(cost.cpu / cost.wall, 1e-3)
    useful = max(1, min(num_shards, int(cores / busy + 0.1)))
    rounds = -(-num_shards // useful)
    number = -(-num_shards // rounds)  # no more than are busy in the last round too
    took += ", mostly waiting" if busy < 0.5 else " of computing"
    if number <= 1:
        alone = "it keeps every core busy by itself" if cores > 1 else "there is one core"
        return 0, f"no workers: {took}, and {'there is one shard' if num_shards == 1 else alone}"
    if busy >= 0.5 and number == cores:
        why = f"one for each of {format_count(cores, 'core')}"
    elif number == num_shards:
        why = f"one for each of {format_count(num_shards, 'shard')}"
    else:
        why = f"as many as {format_count(cores, 'core')} can feed and {format_count(num_shards, 'shard')} keep busy"
    return number, f"{format_count(number, 'worker')}: {took}, so {why}"
