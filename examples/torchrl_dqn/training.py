"""The training: collectors and replay, here or on a Runner, and the loop that goes around them."""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from collector import Collector, Collectors
from model import Learner
from raceway.envs import Purpose, seed_of
from raceway.runner import Runner
from replay_buffer import CostlyLocalStorage, CostlyObjectStorage, ReplayShard, SamplingPlan, shard_sizes

EPSILON = (0.2, 0.02)
"""How often actions are random, in the first and in the last iteration; linear between them."""
WARMUP_FRAMES = 100
"""Frames that replay holds before the first step of the optimiser. They are played like all others."""
SETTINGS = {"hidden": 128, "gamma": 0.99, "lr": 1e-3, "tau": 0.05, "norm": 10.0}
"""Of the learner: the width of its network, γ, Adam's step size, τ, and the largest norm of a gradient."""
PHASES = ("collect", "state", "sample", "optimise", "iteration")
PRELOAD = ["gymnasium", "raceway.envs", "raceway.torchrl.storages", "torchrl.data"]
"""Imported once, for all workers of the process engine."""

Row = dict[str, Any]


class Local:
    """Collectors and replay in this process."""

    def __init__(self, args: argparse.Namespace) -> None:
        storages = [CostlyLocalStorage(size) for size in shard_sizes(args.buffer_size, args.replay_shards)]
        self.shards = [ReplayShard(costly(storage, args), number) for number, storage in enumerate(storages)]
        self.collectors = make_collectors(args, storages)
        for part in (*self.shards, *self.collectors):
            part.start()

    def publish(self, weights: Any) -> Any:
        """Give the weights to collectors."""
        return weights

    def collect(self, weights: Any, epsilon: float, iteration: int) -> list[list[float]]:
        """Collect an iteration's frames; return the returns of the episodes that ended."""
        collections = len(self.collectors)
        return [collector.collect(weights, epsilon, iteration, collections) for collector in self.collectors]

    def sizes(self) -> list[int]:
        """Return how many frames each shard holds."""
        return [shard.size() for shard in self.shards]

    def sample(self, requests: Sequence[tuple[int, int]], seeds: Sequence[int]) -> list[Any]:
        """Draw frames from the shards."""
        drawn = zip(requests, seeds, strict=True)
        return [self.shards[shard].sample(num, seed) for (shard, num), seed in drawn]


class Distributed:
    """Collectors and replay as services of a Runner."""

    def __init__(self, rr: Runner, args: argparse.Namespace) -> None:
        self.rr = rr
        sizes = shard_sizes(args.buffer_size, args.replay_shards)
        storages = [CostlyObjectStorage(rr, size, live=False) for size in sizes]  # read when asked for their sizes
        shards = [ReplayShard(costly(storage, args), number) for number, storage in enumerate(storages)]
        self.shards = [rr.service(shard) for shard in shards]
        members = make_collectors(args, [storage.appender() for storage in storages])
        num = min(args.workers or args.collections, args.collections)
        services = [rr.service(Collectors(members[worker::num])) for worker in range(num)]
        self.collectors = [services[number % num] for number in range(args.collections)]
        rr.get([part.start() for part in (*self.shards, *services)])

    def publish(self, weights: Any) -> Any:
        """Store the weights, once for all collectors."""
        return self.rr.put_object(weights)

    def collect(self, weights: Any, epsilon: float, iteration: int) -> list[list[float]]:
        """Collect an iteration's frames; return the returns of the episodes that ended."""
        collections = len(self.collectors)
        futures = [
            collector.collect(number, weights, epsilon, iteration, collections)
            for number, collector in enumerate(self.collectors)
        ]
        return self.rr.get(futures)

    def sizes(self) -> list[int]:
        """Return how many frames each shard holds."""
        return self.rr.get([shard.size() for shard in self.shards])

    def sample(self, requests: Sequence[tuple[int, int]], seeds: Sequence[int]) -> list[Any]:
        """Draw frames from the shards, at the same time."""
        drawn = zip(requests, seeds, strict=True)
        return self.rr.get([self.shards[shard].sample(num, seed) for (shard, num), seed in drawn])


def make_collectors(args: argparse.Namespace, writers: Sequence[Any]) -> list[Collector]:
    """Make the collectors of an iteration."""
    options = {"num_envs": args.num_envs, "frames": args.frames_per_collection, "writers": writers, "seed": args.seed}
    return [Collector(args.env, number=number, **options) for number in range(args.collections)]


def costly(storage: Any, args: argparse.Namespace) -> Any:
    """Have the storage take as long over its rows as the options say."""
    storage.sample_work, storage.sample_wait = args.sample_work, args.sample_wait
    return storage


class Clock:
    """Adds up how long each phase takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - begin


class Training:
    """The loop, and what it has found out so far."""

    def __init__(
        self, place: Local | Distributed, learner: Learner, args: argparse.Namespace, report: Callable[[Row], None]
    ) -> None:
        self.place, self.learner, self.args, self.report = place, learner, args, report
        self.plan = SamplingPlan(args.batch_size, args.sample_parallelism)
        self.clock = Clock()
        self.frames = self.updates = 0
        self.rows: list[Row] = []
        """The figures of each iteration."""

    def run(self) -> None:
        """Train for all iterations."""
        for iteration, epsilon in enumerate(np.linspace(*EPSILON, self.args.iterations).tolist()):
            before = dict(self.clock.seconds)
            with self.clock("iteration"):
                row = {"iteration": iteration, "epsilon": epsilon, **self.iterate(iteration, epsilon)}
            row["seconds"] = {phase: self.clock.seconds[phase] - before.get(phase, 0.0) for phase in PHASES}
            self.rows.append(row)
            self.report(row)

    def iterate(self, iteration: int, epsilon: float) -> Row:
        """Collect, then optimise; return the figures."""
        place, clock = self.place, self.clock
        with clock("state"):
            weights = place.publish(self.learner.weights())
        with clock("collect"):
            returns = [one for ended in place.collect(weights, epsilon, iteration) for one in ended]
        with clock("state"):
            sizes = place.sizes()
        self.frames += self.args.collections * self.args.frames_per_collection
        steps = self.args.optim_steps if self.frames >= WARMUP_FRAMES else 0
        losses = [self.optimise(sizes) for _ in range(steps)]
        return {
            "buffer": sum(sizes),
            "total": self.frames,
            "episodes": len(returns),
            "mean_reward": float(np.mean(returns)) if returns else None,
            "loss": float(np.mean(losses)) if losses else None,
        }

    def optimise(self, sizes: Sequence[int]) -> float:
        """Sample a batch from shards of these sizes and take one step of the optimiser; return the loss."""
        args = self.args
        seeds = [seed_of(args.seed, Purpose.LEARNER, self.updates, part) for part in range(args.sample_parallelism)]
        with self.clock("sample"):
            parts = self.place.sample(self.plan.next(sizes), seeds)
        with self.clock("optimise"):
            loss = self.learner.update(parts)
        self.updates += 1
        return loss

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return what came of it all."""
        losses = [row["loss"] for row in self.rows if row["loss"] is not None]
        rewards = [row["mean_reward"] for row in self.rows if row["mean_reward"] is not None]
        return {
            "seconds": seconds,
            "frames": self.frames,
            "frames_per_second": self.frames / seconds,
            "first_loss": losses[0] if losses else None,
            "last_loss": losses[-1] if losses else None,
            "last_mean_reward": rewards[-1] if rewards else None,
            "timing": {
                phase: {"total": self.clock.seconds[phase], "mean": self.clock.seconds[phase] / len(self.rows)}
                for phase in PHASES
            },
        }


def run(args: argparse.Namespace, engine: str, report: Callable[[Row], None]) -> tuple[Training, float]:
    """Train, and return how it went and how many seconds it took. Workers are there before time is taken."""
    torch.set_num_threads(1)
    with threadpool_limits(1):  # the last bits of a sum depend on how many threads it is shared by
        learner = Learner(args.obs_dim, args.num_actions, seed=args.seed, **SETTINGS)
        learner.warm_up(args.batch_size)
        if args.local:
            return timed(Training(Local(args), learner, args, report))
        options = {"preload": PRELOAD} if engine == "process" else {}
        with Runner("torchrl-dqn", engine=engine, **options) as rr:
            return timed(Training(Distributed(rr, args), learner, args, report))


def timed(training: Training) -> tuple[Training, float]:
    """Run the training and measure how long it takes."""
    begin = time.perf_counter()
    training.run()
    return training, time.perf_counter() - begin
