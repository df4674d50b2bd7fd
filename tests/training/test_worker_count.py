"""Choosing the number of workers, and measuring the cost of an environment step."""

import time
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from raceway.envs import EnvSettings, make_slots
from raceway.training import worker_count
from raceway.training.worker_count import StepCost, choose_workers, measure_step

WAITING, COMPUTING = 0.0, 1.0


def step_cost(wall: float, cpu_share: float) -> StepCost:
    return StepCost(wall=wall, cpu=wall * cpu_share)


@pytest.mark.parametrize(
    ("wall", "cpu_share", "cores", "shards", "expected", "reason"),
    [
        (0.0, COMPUTING, 8, 10, 0, "takes 0 s, and starting workers would take longer than they save"),
        (24e-6, COMPUTING, 8, 10, 0, "takes 24 µs, and starting workers would take longer than they save"),
        (1e-3, COMPUTING, 2, 10, 2, "takes 1 ms of computing, so one for each of 2 cores"),
        (1e-3, COMPUTING, 1, 10, 0, "takes 1 ms of computing, and there is one core"),
        (1e-3, COMPUTING, 64, 10, 10, "takes 1 ms of computing, so one for each of 10 shards"),
        (1e-3, COMPUTING, 10, 10, 10, "takes 1 ms of computing, so one for each of 10 cores"),
        # Seven workers would need two rounds, as five do, with some idle in the second.
        (1e-3, COMPUTING, 7, 10, 5, "takes 1 ms of computing, so as many as 7 cores can feed and 10 shards keep busy"),
        (5e-2, COMPUTING, 2, 10, 2, "takes 50 ms of computing, so one for each of 2 cores"),
        (5e-2, COMPUTING, 1, 10, 0, "takes 50 ms of computing, and there is one core"),
        (5e-2, COMPUTING, 4, 1, 0, "takes 50 ms of computing, and there is one shard"),
        (5e-2, WAITING, 2, 10, 10, "takes 50 ms, mostly waiting, so one for each of 10 shards"),
        (5e-2, WAITING, 1, 10, 10, "takes 50 ms, mostly waiting, so one for each of 10 shards"),
        (5e-2, WAITING, 4, 1, 0, "takes 50 ms, mostly waiting, and there is one shard"),
        (1e-3, WAITING, 1, 4, 4, "takes 1 ms, mostly waiting, so one for each of 4 shards"),
        (1e-3, 0.3, 2, 10, 5, "takes 1 ms, mostly waiting, so as many as 2 cores can feed and 10 shards keep busy"),
        (1e-3, 4.0, 4, 10, 0, "takes 1 ms of computing, and it keeps every core busy by itself"),
        (1e-3, 2.0, 4, 10, 2, "takes 1 ms of computing, so as many as 4 cores can feed and 10 shards keep busy"),
    ],
)
def test_the_number_of_workers_and_the_reason(
    wall: float, cpu_share: float, cores: int, shards: int, expected: int, reason: str
) -> None:
    num_workers, text = choose_workers(step_cost(wall, cpu_share), cores, shards)
    assert num_workers == expected
    workers = f"{expected} workers" if expected else "no workers"
    assert text == f"{workers}: an environment step {reason}"


@given(st.floats(0, 1), st.floats(0, 8), st.integers(1, 200), st.integers(1, 100))
def test_there_is_never_one_worker_nor_more_than_shards(wall: float, cpu_share: float, cores: int, shards: int) -> None:
    num_workers, reason = choose_workers(step_cost(wall, cpu_share), cores, shards)
    assert num_workers != 1
    assert 0 <= num_workers <= shards
    assert reason.startswith(f"{num_workers} workers: " if num_workers else "no workers: ")


@given(st.floats(1e-4, 1), st.integers(1, 100), st.integers(1, 100))
def test_there_are_no_more_computing_workers_than_cores(wall: float, cores: int, shards: int) -> None:
    num_workers, _ = choose_workers(step_cost(wall, COMPUTING), cores, shards)
    assert num_workers <= cores
    num_workers = max(num_workers, 1)
    # Fewer rounds are impossible, and fewer workers would need more rounds.
    rounds = -(-shards // num_workers)
    assert rounds == -(-shards // min(cores, shards))
    assert num_workers == 1 or -(-shards // (num_workers - 1)) > rounds


class Clock:
    """Replaces the module `time`: only environments advance it."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def process_time(self) -> float:
        return self.cpu


class TimedEnv(gym.Env[Any, Any]):
    """Advances the clock by a fixed time per step; the first step and every reset take much longer."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, clock: Clock, wall: float, cpu: float, length: int) -> None:
        self.clock, self.wall, self.cpu, self.length = clock, wall, cpu, length
        self.steps = self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode_step, self.resets = 0, self.resets + 1
        self.clock.wall += 100
        self.clock.cpu += 100
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.episode_step < self.length, "it was stepped after the end of an episode"
        self.episode_step, self.steps = self.episode_step + 1, self.steps + 1
        self.clock.wall += self.wall if self.steps > 1 else 50
        self.clock.cpu += self.cpu if self.steps > 1 else 50
        return np.zeros(1, np.float32), 0.0, self.episode_step == self.length, False, {}


@pytest.mark.parametrize(
    ("wall", "cpu", "steps"),
    [(0.0, 0.0, 200), (0.001, 0.001, 200), (0.001, 0.0, 200), (0.05, 0.001, 5), (3.0, 3.0, 2)],
)
@pytest.mark.parametrize("length", [1, 3, 1000])
def test_the_cost_of_a_step_is_measured(
    monkeypatch: pytest.MonkeyPatch, wall: float, cpu: float, steps: int, length: int
) -> None:
    """Resets and the first step do not count, and a slow environment is measured for few steps."""
    clock, envs = Clock(), []

    def make() -> TimedEnv:
        envs.append(TimedEnv(clock, wall, cpu, length))
        return envs[-1]

    monkeypatch.setattr(
        worker_count, "time", SimpleNamespace(perf_counter=clock.perf_counter, process_time=clock.process_time)
    )
    settings = EnvSettings(make)
    cost = measure_step(settings, make_slots(settings, 4), 4)
    assert cost.wall == pytest.approx(wall)
    assert cost.cpu == pytest.approx(cpu)
    assert len(envs) == 4 + 1  # one is enough where each is stepped separately
    assert envs[-1].steps in (steps + 1, steps + 2)


@pytest.mark.parametrize(("env", "expected"), [("cartpole", 200), ("acrobot", 1)])
def test_a_native_vector_is_measured_at_its_full_width(
    monkeypatch: pytest.MonkeyPatch, env: str, expected: int
) -> None:
    widths = []
    like = make_slots(EnvSettings(env), 1)
    monkeypatch.setattr(worker_count, "make_slots", lambda env, num: widths.append(num) or make_slots(env, num))
    cost = measure_step(EnvSettings(env), like, 200)
    assert widths == [expected]
    assert 0 < cost.wall < 0.01  # per environment


def test_waiting_is_measured_with_the_real_clock() -> None:
    class Sleeping(TimedEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            return super().step(action)

    settings = EnvSettings(lambda: Sleeping(Clock(), 0, 0, 5))
    cost = measure_step(settings, make_slots(settings, 1), 1)
    assert 0.02 <= cost.wall < 2
    assert cost.cpu < cost.wall / 2
    assert choose_workers(cost, cores=1, num_shards=4)[0] == 4


def test_computing_is_measured_with_the_real_clock() -> None:
    class Computing(TimedEnv):
        def step(self, action: Any) -> Any:
            until = time.process_time() + 0.001
            while time.process_time() < until:
                pass
            return super().step(action)

    settings = EnvSettings(lambda: Computing(Clock(), 0, 0, 5))
    cost = measure_step(settings, make_slots(settings, 1), 1)
    assert 0.001 <= cost.cpu < 0.1
    assert cost.wall > 0.0005


def test_measuring_closes_its_environments() -> None:
    closed = []

    class Closing(TimedEnv):
        def close(self) -> None:
            closed.append(self)

        def step(self, action: Any) -> Any:
            if self.steps == 3:
                raise RuntimeError("no more")
            return super().step(action)

    settings = EnvSettings(lambda: Closing(Clock(), 0, 0, 5))
    like = make_slots(settings, 1)
    with pytest.raises(Exception, match="no more"):
        measure_step(settings, like, 1)
    assert len(closed) == 1
