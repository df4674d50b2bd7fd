"""Measuring the cost of an environment step, and what environments may do meanwhile."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from raceway.algorithms import find_algorithm
from raceway.envs import EnvSettings, make_slots
from raceway.errors import EnvironmentFailed
from raceway.training import step_cost
from raceway.training.step_cost import measure_step
from raceway.training.train import Training
from raceway.training.worker_count import choose_workers
from tests.flaky_envs import flaky_cartpole


class Clock:
    """Replaces the module `time`: only environments advance it."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0
        self.waits = 0

    def perf_counter(self) -> float:
        return self.wall

    def process_time(self) -> float:
        return self.cpu


class TimedEnv(gym.Env[Any, Any]):
    """Advances the clock by a fixed time per step; the first step and every reset take much longer."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, clock: Clock, wall: float, cpu: float, length: int, reset: float = 0.003) -> None:
        self.clock, self.wall, self.cpu, self.length, self.reset_seconds = clock, wall, cpu, length, reset
        self.steps = self.resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode_step, self.resets = 0, self.resets + 1
        self.clock.wall += self.reset_seconds
        self.clock.cpu += self.reset_seconds
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.episode_step < self.length, "it was stepped after the end of an episode"
        self.episode_step, self.steps = self.episode_step + 1, self.steps + 1
        self.clock.wall += self.wall if self.steps > 1 else 1
        self.clock.cpu += self.cpu if self.steps > 1 else 1
        self.clock.waits += self.wall > self.cpu
        return np.zeros(1, np.float32), 0.0, self.episode_step == self.length, False, {}


def use_clock(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    replacement = SimpleNamespace(perf_counter=clock.perf_counter, process_time=clock.process_time)
    monkeypatch.setattr(step_cost, "time", replacement)
    monkeypatch.setattr(step_cost, "_num_waits", lambda: clock.waits)


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

    use_clock(monkeypatch, clock)
    settings = EnvSettings(make)
    cost = measure_step(settings, make_slots(settings, 4), 4)
    assert cost.wall == pytest.approx(wall)
    assert cost.cpu == pytest.approx(cpu)
    assert len(envs) == 4 + 1  # one is enough where each is stepped separately
    assert envs[-1].steps in (steps + 1, steps + 2)


def test_time_for_which_other_programs_had_the_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    use_clock(monkeypatch, clock)
    monkeypatch.setattr(step_cost, "_num_waits", lambda: 0)
    settings = EnvSettings(lambda: TimedEnv(clock, 0.05, 0.001, length=3))
    assert measure_step(settings, make_slots(settings, 1), 1).wall == pytest.approx(0.001)


def test_slow_resets_do_not_make_measuring_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    use_clock(monkeypatch, clock)
    settings = EnvSettings(lambda: TimedEnv(clock, 0.001, 0.001, length=1, reset=0.5))
    assert measure_step(settings, make_slots(settings, 1), 1).wall == pytest.approx(0.001)
    assert clock.wall < 5


@pytest.mark.parametrize(("env", "expected"), [("cartpole", 200), ("acrobot", 1)])
def test_a_native_vector_is_measured_at_its_full_width(
    monkeypatch: pytest.MonkeyPatch, env: str, expected: int
) -> None:
    widths = []
    like = make_slots(EnvSettings(env), 1)
    monkeypatch.setattr(step_cost, "make_slots", lambda env, num: widths.append(num) or make_slots(env, num))
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


class Failing(TimedEnv):
    """Fails in every third step; `closed` has the environments that were closed."""

    def __init__(self, closed: list[Any], length: int) -> None:
        super().__init__(Clock(), 0, 0, length)
        self.closed = closed

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise RuntimeError("no more")
        return super().step(action)

    def close(self) -> None:
        self.closed.append(self)


def test_measuring_tolerates_failures_within_the_budget() -> None:
    closed: list[Any] = []
    settings = EnvSettings(lambda: Failing(closed, length=2))
    assert measure_step(settings, make_slots(settings, 1), 1, max_env_failures=1).wall >= 0
    assert len(closed) == step_cost._MAX_STEPS // 2 + 1  # rebuilt after every episode


def test_measuring_fails_when_the_budget_is_exceeded() -> None:
    closed: list[Any] = []
    settings = EnvSettings(lambda: Failing(closed, length=5))
    with pytest.raises(EnvironmentFailed, match=r"RuntimeError: no more(.|\n)*failure 3 in a row") as raised:
        measure_step(settings, make_slots(settings, 1), 1, max_env_failures=2)
    assert len(closed) == 3
    assert "to choose the number of workers" in raised.value.__notes__[0]


class Masked(gym.Env[Any, Any]):
    """Refuses actions that its mask forbids; the allowed ones change with every step."""

    def __init__(self, action_space: spaces.Space, size: int) -> None:
        self.action_space, self.size, self.now = action_space, size, 0
        mask = spaces.Box(0, 1, (size,), np.int8)
        self.observation_space = spaces.Dict({"observation": spaces.Box(-1, 1, (1,)), "action_mask": mask})

    def allowed(self) -> Any:
        mask = np.zeros(self.size, np.int8)
        mask[[self.now % 3, 3 + self.now % 2]] = 1
        return {"observation": np.zeros(1, np.float32), "action_mask": mask}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.allowed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        chosen = [action] if isinstance(self.action_space, spaces.Discrete) else [action[0], 3 + action[1]]
        assert all(self.allowed()["action_mask"][index] for index in chosen), "a masked action"
        self.now += 1
        return self.allowed(), 0.0, False, self.now % 7 == 0, {}


@pytest.mark.parametrize("action_space", [spaces.Discrete(5), spaces.MultiDiscrete([3, 2])])
def test_measuring_obeys_action_masks(action_space: spaces.Space) -> None:
    settings = EnvSettings(lambda: Masked(action_space, 5))
    assert measure_step(settings, make_slots(settings, 1), 1).wall > 0


@pytest.mark.parametrize("env", [lambda: Masked(spaces.Discrete(5), 5), lambda: flaky_cartpole(step=0.05)])
def test_auto_works_wherever_training_does(env: Any) -> None:
    reinforce = find_algorithm("reinforce")
    training = Training(reinforce, reinforce.settings(env=env, engine="process", seed=3))
    assert "an environment step takes" in training.num_workers_reason


@pytest.mark.timeout(method="thread")  # the other method uses the timer that measuring needs
@pytest.mark.parametrize("num_steps", [0, 1, 50])
def test_an_environment_that_hangs_is_abandoned_at_the_deadline(num_steps: int) -> None:
    class Hanging(TimedEnv):
        def step(self, action: Any) -> Any:
            if self.steps >= num_steps:
                threading.Event().wait()
            return super().step(action)

        def close(self) -> None:
            pytest.fail("it would hang")

    settings = EnvSettings(lambda: Hanging(Clock(), 0, 0, 5))
    cost = measure_step(settings, make_slots(settings, 1), 1, deadline=0.2)
    assert cost.timed_out == 0.2
    num_workers, reason = choose_workers(cost, cores=2, num_shards=4)
    assert num_workers >= 1
    assert reason.endswith("did not return within 200 ms, and a worker that hangs is restarted")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


@pytest.mark.timeout(method="thread")
def test_the_deadline_is_that_of_a_call() -> None:
    def spend(seconds: float) -> None:
        """Let time pass for the timer."""
        left = signal.getitimer(signal.ITIMER_REAL)[0]
        if left > seconds:
            signal.setitimer(signal.ITIMER_REAL, left - seconds)
        elif left:
            signal.raise_signal(signal.SIGALRM)

    class Slow(Failing):
        def __init__(self) -> None:
            spend(250)
            super().__init__([], length=1)

        def reset(self, **options: Any) -> Any:
            spend(250)
            return super().reset(**options)

        def step(self, action: Any) -> Any:
            spend(250)
            return super().step(action)

    settings = EnvSettings(Slow)
    assert measure_step(settings, make_slots(settings, 1), 1, max_env_failures=1, deadline=600).timed_out is None


def test_an_environment_is_not_bounded_in_other_threads() -> None:
    """Signals arrive in the main thread only."""
    settings = EnvSettings(lambda: TimedEnv(Clock(), 0, 0, 5))
    with ThreadPoolExecutor(1) as pool:
        cost = pool.submit(measure_step, settings, make_slots(settings, 1), 1, deadline=0.001).result()
    assert cost.timed_out is None
