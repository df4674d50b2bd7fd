"""Rollout throughput, compared with that of the environments alone.

python benchmarks/rollouts.py [--seconds 2] [--blocks 5]

One core unless noted, a 64-64 policy. Sides alternate in short blocks.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import gymnasium as gym
import numpy as np
from _harness import Report

from raceway.agents import Agent, Spaces, make_policy
from raceway.algorithms import find_algorithm
from raceway.envs import EnvSettings, make_slots
from raceway.machine import worker_compute_settings
from raceway.ops import RolloutSettings, RolloutWorker, parallel_rollouts
from raceway.rollouts import Collector
from raceway.training.train import Training

Side = Callable[[], int]
"""Does some work and returns its number of environment steps."""


def rates(sides: dict[str, Side], blocks: int, length: float) -> dict[str, list[float]]:
    """Return environment steps per second of every side in every block; the sides alternate."""
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(blocks):
        for name, side in sides.items():
            start, steps = time.perf_counter(), 0
            while time.perf_counter() - start < length:
                steps += side()
            measured[name].append(steps / (time.perf_counter() - start))
    return measured


def ratio(measured: dict[str, list[float]], side: str, reference: str) -> float:
    """Return the median over the blocks of side / reference."""
    return statistics.median(a / b for a, b in zip(measured[side], measured[reference], strict=True))


def collector_side(env: str, num_slots: int, num_steps: int) -> Side:
    """Collect fragments."""
    slots = make_slots(EnvSettings(env), num_slots)
    policy = make_policy(slots.observation_space, slots.action_space, "mlp", (64, 64), seed=0)
    collector, numbers = Collector(slots, policy, seed=0, shard=0), count()

    def run() -> int:
        collector.fragment(num_steps, next(numbers))
        return num_steps * num_slots

    return run


def numpy_limit(num_envs: int) -> Side:
    """Step Gymnasium's vector CartPole with a small policy in numpy, and store nothing."""
    env = gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="vector_entry_point")
    obs, _ = env.reset(seed=0)
    random = np.random.default_rng(0)
    first, second = random.standard_normal((4, 64), np.float32), random.standard_normal((64, 2), np.float32)

    def run() -> int:
        nonlocal obs
        for _ in range(100):
            logits = np.maximum(obs @ first, 0) @ second
            actions = (random.random(num_envs) < 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))).astype(np.int64)
            obs, *_ = env.step(actions)
        return 100 * num_envs

    return run


def raw_side(name: str, steps: int) -> Side:
    """Call `env.step` of one environment, with actions like those of an untrained Gaussian policy."""
    env = gym.make(name, disable_env_checker=True)
    env.reset(seed=0)
    shape = env.action_space.shape
    assert shape is not None
    actions = np.random.default_rng(0).standard_normal((steps, *shape), np.float32)

    def run() -> int:
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        return steps

    return run


def cartpole(report: Report, blocks: int, length: float) -> None:
    """Compare with the vector environment and a policy that costs next to nothing."""
    sides = {"raceway": collector_side("cartpole", 256, 128), "limit": numpy_limit(256)}
    measured = rates(sides, blocks, length)
    speed, share = statistics.median(measured["raceway"]), ratio(measured, "raceway", "limit")
    report.row(
        "CartPole, 256 environments, one core: steps/s, and of the limit with a numpy policy that stores nothing",
        "at least 300000, or 0.5 of the limit",
        speed >= 300_000 or share >= 0.5,
        steps_per_s=speed,
        limit_per_s=statistics.median(measured["limit"]),
        ratio=share,
    )


def halfcheetah(report: Report, blocks: int, length: float) -> None:
    """Compare with calling `env.step` and nothing else."""
    sides = {"raceway": collector_side("halfcheetah", 16, 32), "raw": raw_side("HalfCheetah-v5", 500)}
    measured = rates(sides, blocks, length)
    report.row(
        "HalfCheetah, 16 environments, one core: steps/s / raw env.step",
        "at least 0.8",
        ratio(measured, "raceway", "raw") >= 0.8,
        ratio=ratio(measured, "raceway", "raw"),
        steps_per_s=statistics.median(measured["raceway"]),
    )


def ant(report: Report, blocks: int) -> None:
    """Compare two workers with one process on whole iterations of REINFORCE, and on fragments."""
    for what, sides in (("whole iterations of REINFORCE", iterations()), ("fragments", fragments())):
        measured: dict[str, list[float]] = {name: [] for name in sides}
        for side, _ in sides.values():
            side()  # starts workers and creates environments
        for _ in range(blocks):
            for name, (side, _) in sides.items():
                start = time.perf_counter()
                steps = side()
                measured[name].append(steps / (time.perf_counter() - start))
        for _, close in sides.values():
            close()
        report.row(
            f"Ant, {what}: process engine with 2 workers / inline",
            "at least 1.8",
            ratio(measured, "process", "inline") >= 1.8,
            ratio=ratio(measured, "process", "inline"),
            process_per_s=statistics.median(measured["process"]),
        )


def iterations() -> dict[str, tuple[Side, Callable[[], Any]]]:
    """Return a training iteration on each engine: the same episodes on both."""
    return {name: iteration_side(name) for name in ("inline", "process")}


def iteration_side(engine_name: str, env: Any = "ant", num_workers: int = 2, **settings: Any) -> tuple[Side, Any]:
    """Return a function that runs one iteration of REINFORCE, and one that closes it."""
    algorithm = find_algorithm("reinforce")
    more = {"num_workers": num_workers} if engine_name != "inline" else {}
    training = Training(algorithm, algorithm.settings(env=env, engine=engine_name, **more, **settings))
    engine = training._engine()
    run = training.flow(training._spawn(engine)).start()
    training.report.start()

    def iterate() -> int:
        before = training.report.timesteps
        with worker_compute_settings():
            next(run)
        return training.report.timesteps - before

    def close() -> None:
        run.close()
        engine.close()

    return iterate, close


def ant_agent(spaces: Spaces) -> Agent:
    """Return an agent with two hidden layers of 256."""
    return Agent(make_policy(*spaces, "mlp", (256, 256)))


def fragments() -> dict[str, tuple[Side, Callable[[], Any]]]:
    """Return rounds of fragments on each engine."""
    from raceway.engine import make_engine

    settings = RolloutSettings(
        env=EnvSettings("ant"), agent=ant_agent, num_shards=4, slots_per_shard=8, fragment_steps=128
    )
    sides: dict[str, tuple[Side, Callable[[], Any]]] = {}
    for name in ("inline", "process"):
        engine = make_engine(name)
        workers = [engine.spawn(RolloutWorker, (settings,)) for _ in range(1 if name == "inline" else 2)]
        run = parallel_rollouts(workers, settings).gather_sync().start()

        def run_round(run: Any = run) -> int:
            with worker_compute_settings():
                return sum(batch["reward"].size for batch in next(run))

        sides[name] = (run_round, engine.close)
    return sides


def main() -> None:
    """Run all comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a block")
    parser.add_argument("--blocks", type=int, default=5, help="blocks per side")
    options = parser.parse_args()
    report = Report("rollouts")
    with worker_compute_settings():
        cartpole(report, options.blocks, options.seconds)
        halfcheetah(report, options.blocks, options.seconds)
    ant(report, 2 * options.blocks)
    report.write()


if __name__ == "__main__":
    main()
