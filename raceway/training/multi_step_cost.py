"""Measuring the cost of a step of an environment with several agents, with random actions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.envs.env_vector import close, environment_error
from raceway.envs.multi_agent import MultiAgentSettings, is_turn_based
from raceway.errors import INTERRUPTS, EnvironmentFailed, RacewayError
from raceway.runs.statistics import interquartile_mean
from raceway.training.step_cost import StepCost, TimedOut, interrupt_after

_MEASURE_SECONDS, _MAX_SECONDS = 0.25, 2.0
_MIN_STEPS, _MAX_STEPS = 2, 200


def measure_joint_step(settings: MultiAgentSettings, deadline: float | None = None) -> StepCost:
    """Measure the cost of a step of all agents, or of one turn, in a temporary environment.

    Args:
        settings: the environment.
        deadline: seconds after which an environment is abandoned that does not return.
    """
    walls: list[float] = []
    cpus: list[float] = []
    try:
        with interrupt_after(deadline):
            env = settings.make()
            try:
                _measure(env, walls, cpus)
            finally:
                close(env)
    except TimedOut:
        assert deadline is not None
        return StepCost(deadline, 0.0, deadline)
    except (RacewayError, *INTERRUPTS):
        raise
    except (Exception, SystemExit) as error:
        if len(walls) > _MIN_STEPS:  # training rebuilds an environment that fails, so the steps before it count
            return _cost(walls, cpus)
        failure = environment_error(0, "step", error)
        place = "a temporary environment, to choose the number of workers"
        raise EnvironmentFailed(failure.problem, 0, place) from error
    return _cost(walls, cpus)


def _cost(walls: list[float], cpus: list[float]) -> StepCost:
    """Return the cost of a step from those that were measured, without the first, which is often slower."""
    return StepCost(interquartile_mean(walls[1:]), interquartile_mean(cpus[1:]))


def _measure(env: Any, walls: list[float], cpus: list[float]) -> None:
    begin, turn_based, obs = time.perf_counter(), is_turn_based(env), None
    for agent in env.possible_agents:
        env.action_space(agent).seed(0)
    while not _done(walls, time.perf_counter() - begin):
        if obs is None or not env.agents:
            reset = env.reset(seed=0)
            obs = {} if turn_based else reset[0]
        action = _turn_action(env) if turn_based else {agent: _sample(env, agent, obs[agent]) for agent in env.agents}
        wall, cpu = time.perf_counter(), time.process_time()
        stepped = env.step(action)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        obs = {} if turn_based else stepped[0]


def _done(walls: list[float], elapsed: float) -> bool:
    if len(walls) <= _MIN_STEPS:
        return False
    return len(walls) > _MAX_STEPS or sum(walls) >= _MEASURE_SECONDS or elapsed >= _MAX_SECONDS


def _turn_action(env: Any) -> Any:
    obs, _, terminated, truncated, _ = env.last()
    return None if terminated or truncated else _sample(env, env.agent_selection, obs)


def _sample(env: Any, agent: str, obs: Any) -> Any:
    """Return a random action among those that the action mask allows."""
    mask = obs.get("action_mask") if isinstance(obs, Mapping) else None
    space = env.action_space(agent)
    return space.sample() if mask is None else space.sample(mask=np.asarray(mask, np.int8))
