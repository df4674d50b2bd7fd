"""Measuring the cost of an environment step, under the same rules as a rollout: masks, checks and failure budget."""

from __future__ import annotations

import math
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces

from raceway.agents import Policy, distribution_for
from raceway.envs import EnvSettings, Slots, SteppedSlots, make_slots
from raceway.errors import EnvironmentFailed
from raceway.rl import network_obs_space
from raceway.rl.seeding import Purpose, derive_seed
from raceway.rollouts.collector import Collector
from raceway.rollouts.recovery import Recovery
from raceway.runs.statistics import interquartile_mean

Array = np.ndarray

_MEASURE_SECONDS = 0.25
_MAX_SECONDS = 2.0  # with resets, which are not measured
_SHORT_SECONDS = 0.01
_MAX_STEPS = 200
_MIN_STEPS = 2


@dataclass(frozen=True)
class StepCost:
    """The time that one step of one environment takes, in seconds."""

    wall: float
    """Elapsed time."""
    cpu: float
    """CPU time; the rest is waiting."""
    timed_out: float | None = None
    """The deadline in seconds, if the environment did not return within it."""


class RandomPolicy:
    """Selects random actions among those that the action mask allows, with the interface that a collector needs."""

    recurrent = False

    def __init__(self, slots: Slots) -> None:
        self._num, self._space = slots.num, slots.action_space
        self._has_mask = network_obs_space(slots.observation_space)[1]

    def initial_state(self, num: int) -> dict[str, Any]:
        """Return an empty recurrent state."""
        return {}

    def acting(self, random: np.random.Generator, *_: Any) -> Callable[[Any, Any], tuple[Array, Any]]:
        """Return a function from observations and recurrent state to actions and the next state."""
        if isinstance(self._space, spaces.Box):
            self._space.seed(int(random.integers(1 << 31)))
            return lambda obs, state: (np.stack([self._space.sample() for _ in range(self._num)]), state)
        distribution = distribution_for(self._space)
        logits = torch.zeros(self._num, distribution.size)

        def act(obs: Any, state: Any) -> tuple[Array, Any]:
            allowed = (
                distribution.apply_mask(logits, torch.from_numpy(obs["action_mask"])) if self._has_mask else logits
            )
            return distribution.sample(allowed.numpy(), random), state

        return act


class TimedOut(BaseException):
    """The deadline has passed. No `Exception`, which environments may catch."""


@contextmanager
def interrupt_after(seconds: float | None) -> Iterator[Callable[[], object]]:
    """Raise `TimedOut` in the main thread after some seconds, even while it waits for something.

    Yields a function that restarts the timer. Without effect in other threads, in a program that uses the timer itself,
    and on code that never returns to Python.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if seconds is None or not in_main_thread or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield lambda: None
        return

    def raise_timed_out(*_: object) -> None:
        raise TimedOut

    handler = signal.signal(signal.SIGALRM, raise_timed_out)
    restart = partial(signal.setitimer, signal.ITIMER_REAL, seconds)
    restart()
    try:
        yield restart
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _num_waits() -> float:
    """Return how often this thread has given up the core to wait for something; NaN where that is not known."""
    if sys.platform != "linux":
        return math.nan
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


class _Stopwatch:
    """Measures the steps of the slots that it creates."""

    def __init__(self, env: EnvSettings, num_slots: int) -> None:
        self.env, self.num_slots = env, num_slots
        self.before_call: Callable[[], object] = lambda: None
        """Called before every call of an environment."""
        self.walls: list[float] = []
        self.cpus: list[float] = []

    def make_slots(self, _: int = 0) -> Slots:
        self.before_call()
        slots = make_slots(self.env, self.num_slots)
        slots.step = partial(self._step, slots.step)  # type: ignore[method-assign]
        slots.reset = partial(self._call, slots.reset)  # type: ignore[method-assign]
        if isinstance(slots, SteppedSlots):
            slots.rebuild = partial(self._call, slots.rebuild)  # type: ignore[method-assign]
        return slots

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        self.before_call()
        return method(*arguments)

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        self.before_call()
        waits, wall, cpu = _num_waits(), time.perf_counter(), time.process_time()
        outcome = step(*arguments)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        # A step that did not wait for anything took longer than its CPU time only because other programs had the core.
        self.walls.append(min(wall, cpu) if _num_waits() == waits else wall)
        self.cpus.append(cpu)
        return outcome

    @property
    def done(self) -> bool:
        """Whether enough steps were measured, not counting the first."""
        num_steps = len(self.walls) - 1
        return num_steps >= _MAX_STEPS or (num_steps >= _MIN_STEPS and sum(self.walls[1:]) >= _MEASURE_SECONDS)

    def cost(self, timed_out: float | None = None) -> StepCost:
        walls, cpus = self.walls[1:], self.cpus[1:]  # the first step is often slower
        if not walls and timed_out is not None:
            return StepCost(timed_out, 0.0, timed_out)
        # Not the mean: one step during which another program had the core would outweigh hundreds.
        wall, cpu = interquartile_mean(walls), interquartile_mean(cpus)
        return StepCost(wall / self.num_slots, cpu / self.num_slots, timed_out)


def measure_step(
    env: EnvSettings, like: Slots, slots_per_shard: int, *, max_env_failures: int = 0, deadline: float | None = None
) -> StepCost:
    """Measure the cost of a step, with random actions in temporary environments.

    Args:
        env: the environment.
        like: existing slots of it, which show whether it is natively vectorised.
        slots_per_shard: the width of such a vector.
        max_env_failures: failure budget, as that of a shard; see `Recovery`.
        deadline: seconds after which an environment is abandoned that does not return from a call.
    """
    stopwatch = _Stopwatch(env, 1 if isinstance(like, SteppedSlots) else slots_per_shard)
    recovery = Recovery(max_env_failures, stopwatch.make_slots)
    try:
        with ExitStack() as stack, interrupt_after(deadline) as stopwatch.before_call:
            slots = recovery.make_slots(lambda _: ("a temporary environment", 0))
            policy = cast(Policy, RandomPolicy(slots))
            collector = Collector(slots, policy, seed=derive_seed(0, Purpose.EVALUATION), shard=0, recovery=recovery)
            # An environment that hangs is abandoned: closing it could hang as well.
            stack.push(lambda error, *_: None if error is TimedOut else collector.close())
            _collect(collector, stopwatch)
    except TimedOut:
        return stopwatch.cost(timed_out=deadline)
    except EnvironmentFailed as error:
        error.add_note("This was while the cost of a step was measured, to choose the number of workers.")
        raise
    return stopwatch.cost()


def _collect(collector: Collector, stopwatch: _Stopwatch) -> None:
    """Step the environments until enough steps are measured."""
    start, number, num_steps = time.perf_counter(), 0, 1
    while not stopwatch.done:
        fragment_start = time.perf_counter()
        collector.fragment(min(num_steps, _MAX_STEPS + 1 - len(stopwatch.walls)), number)
        number += 1
        if time.perf_counter() - fragment_start < _SHORT_SECONDS:
            num_steps *= 2  # the work around a fragment evicts caches, which makes the step after it slower
        if len(stopwatch.walls) > _MIN_STEPS and time.perf_counter() - start > _MAX_SECONDS:
            break
