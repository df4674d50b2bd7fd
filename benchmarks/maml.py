"""MAML on held-out tasks: returns before and after adaptation, compared with a policy trained by PPO.

PPO trains for the same number of environment steps over the same tasks. Its policy is adapted with the same inner
learning rate, and with the one that suits it best. Tasks are paired; intervals are of the mean over tasks.

python benchmarks/maml.py [--env point|cheetah-direction] [--quick]
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np
from _harness import Report

from raceway.agents import Agent
from raceway.algorithms import find_algorithm
from raceway.algorithms.maml import inner_loss
from raceway.engine import make_engine
from raceway.learner.adaptation import adapt_parameters
from raceway.machine import worker_compute_settings
from raceway.ops import FitBaseline, InnerAdapt, Learner, UpdateWeights, parallel_rollouts
from raceway.rl import episode_sums
from raceway.runs.recorder import Result
from raceway.runs.statistics import bootstrap_interval
from raceway.training.train import Training, train

NUM_TASKS, EPISODES = 40, 20
HELD_OUT = 10_000
"""Seed of the held-out tasks."""
INNER_LRS = (0.03, 0.1, 0.3, 1.0, 3.0)
PLAIN: dict[str, Any] = {"num_envs": 64, "num_shards": 4, "num_epochs": 4, "num_minibatches": 16}
"""Settings of PPO; a fragment is as long as an episode."""


def returns_of(trained: Agent, env: str, inner_lr: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean return in each held-out task before and after adaptation, [tasks], without training.

    Args:
        trained: the agent whose policy is adapted.
        env: the environment.
        inner_lr: the inner learning rate.
    """
    algorithm = find_algorithm("maml")
    more: dict[str, Any] = {"num_shards": NUM_TASKS, "num_envs": NUM_TASKS * EPISODES, "seed": HELD_OUT}
    training = Training(algorithm, algorithm.settings(env=env, engine="inline", **more))
    agent = Agent(trained.actor)
    rollouts = dataclasses.replace(training.rollouts, agent=lambda _: copy.deepcopy(agent))
    with worker_compute_settings(), make_engine("inline") as engine:
        training.source.settings = rollouts
        workers = training._spawn(engine)
        weights = UpdateWeights(Learner(agent, 1.0), workers)
        weights.send(workers)
        inner = InnerAdapt(weights, partial(adapt_parameters, agent, inner_loss, inner_lr))
        rounds = parallel_rollouts(workers, rollouts).for_each(FitBaseline(training.cfg.gamma)).gather_sync()
        tasks = next(iter(rounds.combine(inner).take(1)))
    means = [[episode_sums(batch["reward"], batch["length"]).mean() for batch in task] for task in tasks]
    before, after = np.array(means).T
    return before, after


def train_inline(algorithm: str, **settings: Any) -> tuple[Result, dict[str, Any]]:
    """Train in this process, and return the result and the last row of metrics."""
    with tempfile.TemporaryDirectory() as folder:
        result = train(algorithm, engine="inline", run_dir=f"{folder}/run", progress=False, **settings)
        return result, result.metrics[-1]


def interval(values: np.ndarray) -> dict[str, float]:
    """Return the mean and its 95 % interval."""
    low, high = bootstrap_interval(values, lambda sample: float(sample.mean()))
    return {"mean": float(values.mean()), "low": low, "high": high}


def compare(report: Report, env: str, seed: int, steps: int | None) -> None:
    """Train with both algorithms and adapt both policies to the same tasks."""
    length = {} if steps is None else {"total_timesteps": steps}
    cfg = find_algorithm("maml").settings(env=env, **length)
    start = time.perf_counter()
    meta, last_row = train_inline("maml", env=env, seed=seed, **length)
    seconds, steps = time.perf_counter() - start, meta.summary["timesteps"]
    print(f"{env}: maml {steps:,} steps in {seconds:.0f} s", flush=True)
    plain_settings = {**PLAIN, "env": env, "seed": seed, "total_timesteps": steps}
    plain_settings["fragment_steps"] = int(np.ceil(last_row["rollout/ep_len_mean"]))
    plain, _ = train_inline("ppo", **plain_settings)
    print(f"{env}: ppo {plain.summary['timesteps']:,} steps", flush=True)
    before, after = returns_of(meta.policy.agent, env, cfg.inner_lr)
    plain_returns = {lr: returns_of(plain.policy.agent, env, lr) for lr in (cfg.inner_lr, *INNER_LRS)}
    best = max(plain_returns, key=lambda lr: plain_returns[lr][1].mean())
    (plain_before, same_lr), (_, best_lr) = plain_returns[cfg.inner_lr], plain_returns[best]
    returns = {
        "before": before, "after": after,
        "plain_before": plain_before, "plain_after": same_lr, "plain_after_best": best_lr,
    }  # fmt: skip
    for name, values in returns.items():
        print(f"    {name:<17}" + ", ".join(f"{key} {value:.2f}" for key, value in interval(values).items()))
    intervals = {f"{name}_{key}": value for name, values in returns.items() for key, value in interval(values).items()}
    about = {"timesteps": steps, "train_seconds": seconds, "inner_lr": cfg.inner_lr, "plain_best_inner_lr": best}
    bar = f"interval over {NUM_TASKS} held-out tasks above 0"
    gain = interval(after - before)
    report.row(f"{env}: maml, return after adapting - before it", bar, gain["low"] > 0, **gain)
    for name, other in (("the same inner lr", same_lr), (f"its best inner lr of {len(plain_returns)}", best_lr)):
        difference = interval(after - other)
        report.row(f"{env}: after adapting, maml - ppo with {name}", bar, difference["low"] > 0, **difference)
    apart = intervals["after_low"] > max(intervals["before_high"], intervals["plain_after_high"])
    report.row(f"{env}: returns", "intervals do not overlap", apart, **intervals, **about)


def main() -> None:
    """Compare in both environments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=["point", "cheetah-direction"], action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, and PointGoals only")
    arguments = parser.parse_args()
    envs = arguments.env or (["point"] if arguments.quick else ["point", "cheetah-direction"])
    report = Report("maml")
    for env in envs:
        compare(report, env, arguments.seed, 150_000 if arguments.quick else None)
    if not arguments.quick:
        report.write()


if __name__ == "__main__":
    main()
