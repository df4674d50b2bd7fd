"""The number of workers: chosen from the measured cost of an environment step, or limited by the shards."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from raceway.algorithms.setting_sources import DEFAULT, FILE, PRESET, USER, Sources
from raceway.envs import EnvSettings, Slots
from raceway.errors import ConfigError
from raceway.formatting import format_count, format_duration
from raceway.machine import num_cores
from raceway.training.step_cost import StepCost, measure_step

_log = logging.getLogger(__name__)

MIN_REMOTE_STEP_SECONDS = 25e-6
"""Environments whose step takes less are stepped in the driver. For these, the policy and the learner take most of the
time, and starting a worker takes longer than many iterations."""


def decide_workers(
    cfg: Any, env: EnvSettings, slots: Slots | None, sources: Sources, *, resumed: bool
) -> tuple[int, str]:
    """Return the number of workers of a run, 0 for stepping in the driver, and the reason if it is not the user's.

    Args:
        cfg: the config, adapted to the environment.
        env: the environment.
        slots: existing slots of it; None if workers do not step environments.
        sources: where the settings come from.
        resumed: whether the run is resumed.
    """
    if cfg.num_workers != "auto":
        num_workers, reason = limit_workers(cfg, sources, resumed=resumed)
        if reason:
            _log.warning("using %s", reason)
        return num_workers, reason
    if cfg.engine == "inline" or slots is None:
        return 0, ""
    limits = {"max_env_failures": cfg.max_env_failures, "deadline": cfg.item_deadline}
    cost = measure_step(env, slots, cfg.slots_per_shard, **limits)
    return choose_workers(cost, num_cores(), cfg.num_shards)


def choose_workers(cost: StepCost, cores: int, num_shards: int) -> tuple[int, str]:
    """Return the number of workers, 0 for stepping in the driver, and the reason.

    >>> choose_workers(StepCost(wall=4e-6, cpu=4e-6), cores=2, num_shards=10)
    (0, 'no workers: an environment step takes 4 µs, and starting workers would take longer than they save')
    >>> choose_workers(StepCost(wall=1e-3, cpu=1e-3), cores=2, num_shards=10)
    (2, '2 workers: an environment step takes 1 ms of computing, so one for each of 2 cores')
    >>> choose_workers(StepCost(wall=5e-2, cpu=1e-4), cores=2, num_shards=10)
    (10, '10 workers: an environment step takes 50 ms, mostly waiting, so one for each of 10 shards')
    """
    if cost.timed_out is not None:
        num_workers = max(1, choose_workers(dataclasses.replace(cost, timed_out=None), cores, num_shards)[0])
        reason = f"an environment did not return within {format_duration(cost.timed_out)}"
        return num_workers, f"{format_count(num_workers, 'worker')}: {reason}, and a worker that hangs is restarted"
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


def limit_workers(cfg: Any, sources: Sources, *, resumed: bool) -> tuple[int, str]:
    """Return how many of the requested workers have a shard, and the reason if these are fewer.

    Shards determine the results, and so are not added for workers. To ask for more workers than shards is an error only
    if the user set both.

    Args:
        cfg: the config, adapted to the environment.
        sources: where its settings come from.
        resumed: whether the run is resumed, so that its shards cannot change.
    """
    if cfg.num_workers <= cfg.num_shards:
        return cfg.num_workers, ""
    shards, workers = format_count(cfg.num_shards, "shard"), format_count(cfg.num_shards, "worker")
    if sources.get("num_shards") == USER and sources.get("num_workers") == USER:
        raise ConfigError(
            f"{cfg.num_workers} workers need at least as many shards, and num_shards is {cfg.num_shards}. Use at most "
            f"{workers}{'' if resumed else ', or more shards (that changes the results)'}."
        )
    origins = {FILE: "the config file has", PRESET: "the preset has", DEFAULT: "the default is"}
    origin = origins.get(sources.get("num_shards", ""), "there are")
    reason = f"{workers} instead of {cfg.num_workers}: {origin} {shards}, and a worker without one would be idle"
    num_envs = getattr(cfg, "num_envs", cfg.num_workers)  # which shards divide among themselves
    possible = range(cfg.num_workers, num_envs + 1)
    enough = next((number for number in possible if num_envs % number == 0), None)
    if resumed or enough is None:
        return cfg.num_shards, reason
    return cfg.num_shards, f"{reason}. With num_shards {enough} all of them work, and the results differ"
