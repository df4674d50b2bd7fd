"""Choosing the number of workers from the measured cost of an environment step."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from raceway.envs import EnvSettings, Slots, SteppedSlots, make_slots
from raceway.formatting import format_count, format_duration
from raceway.rl import empty
from raceway.rl.seeding import Purpose, derive_seed
from raceway.runs.statistics import interquartile_mean

_MEASURE_SECONDS = 0.25
_MAX_STEPS = 200
MIN_REMOTE_STEP_SECONDS = 25e-6
"""Environments whose step takes less are stepped in the driver. For these, the policy and the learner take most of the
time, and starting a worker takes longer than many iterations."""


@dataclass(frozen=True)
class StepCost:
    """The time that one step of one environment takes, in seconds."""

    wall: float
    """Elapsed time."""
    cpu: float
    """CPU time; the rest is waiting."""


def measure_step(env: EnvSettings, like: Slots, slots_per_shard: int) -> StepCost:
    """Measure the cost of a step, with random actions in temporary environments.

    Args:
        env: the environment.
        like: existing slots of it, which show whether it is natively vectorised.
        slots_per_shard: the width of such a vector.
    """
    slots = make_slots(env, 1 if isinstance(like, SteppedSlots) else slots_per_shard)
    try:
        obs = empty(slots.observation_space, (slots.num,))
        reward, ended = np.zeros(slots.num, np.float32), np.zeros((2, slots.num), bool)
        all_slots = list(range(slots.num))
        slots.action_space.seed(0)
        actions = [[slots.action_space.sample() for _ in all_slots] for _ in range(_MAX_STEPS)]
        slots.reset(all_slots, [derive_seed(0, Purpose.EVALUATION, slot) for slot in all_slots], obs)
        slots.step(np.array(actions[0]), all_slots, obs, reward, ended)  # the first step is often slower
        walls: list[float] = []
        cpus: list[float] = []
        episode = 0
        while len(walls) < _MAX_STEPS and (sum(walls) < _MEASURE_SECONDS or len(walls) < 2):
            ended_slots = np.flatnonzero(ended.any(0)).tolist()
            if ended_slots:
                episode += 1
                slots.reset(
                    ended_slots, [derive_seed(0, Purpose.EVALUATION, slot, episode) for slot in ended_slots], obs
                )
                ended[:] = False
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            slots.step(np.array(actions[len(walls)]), all_slots, obs, reward, ended)
            walls.append(time.perf_counter() - wall_start)
            cpus.append(time.process_time() - cpu_start)
    finally:
        slots.close()
    # Not the mean: one step during which another program had the core would outweigh hundreds.
    return StepCost(interquartile_mean(walls) / slots.num, interquartile_mean(cpus) / slots.num)


def choose_workers(cost: StepCost, cores: int, num_shards: int) -> tuple[int, str]:
    """Return the number of workers, 0 for stepping in the driver, and the reason.

    >>> choose_workers(StepCost(wall=4e-6, cpu=4e-6), cores=2, num_shards=10)
    (0, 'no workers: an environment step takes 4 µs, and starting workers would take longer than they save')
    >>> choose_workers(StepCost(wall=1e-3, cpu=1e-3), cores=2, num_shards=10)
    (2, '2 workers: an environment step takes 1 ms of computing, so one for each of 2 cores')
    >>> choose_workers(StepCost(wall=5e-2, cpu=1e-4), cores=2, num_shards=10)
    (10, '10 workers: an environment step takes 50 ms, mostly waiting, so one for each of 10 shards')
    """
    cost_text = f"an environment step takes {format_duration(cost.wall)}"
    if cost.wall < MIN_REMOTE_STEP_SECONDS:
        return 0, f"no workers: {cost_text}, and starting workers would take longer than they save"
    cpu_share = max(cost.cpu / cost.wall, 1e-3)
    max_workers = max(1, min(num_shards, int(cores / cpu_share + 0.1)))
    rounds = -(-num_shards // max_workers)
    num_workers = -(-num_shards // rounds)  # no more than have a shard in the last round
    cost_text += ", mostly waiting" if cpu_share < 0.5 else " of computing"
    if num_workers <= 1:
        reason = "it keeps every core busy by itself" if cores > 1 else "there is one core"
        return 0, f"no workers: {cost_text}, and {'there is one shard' if num_shards == 1 else reason}"
    if cpu_share >= 0.5 and num_workers == cores:
        reason = f"one for each of {format_count(cores, 'core')}"
    elif num_workers == num_shards:
        reason = f"one for each of {format_count(num_shards, 'shard')}"
    else:
        reason = f"as many as {format_count(cores, 'core')} can feed and {format_count(num_shards, 'shard')} keep busy"
    return num_workers, f"{format_count(num_workers, 'worker')}: {cost_text}, so {reason}"
