"""The training loop, and its collectors and replay shards, in this process or on a Runner."""

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

from collector import Collector, CollectorGroup
from model import Learner
from raceway.rl.seeding import Purpose, derive_seed
from raceway.runner import Runner
from replay_buffer import ReplayShard, SampleRequest, SamplingPlan, SlowLocalStorage, SlowObjectStorage, shard_sizes

EPSILON = (0.2, 0.02)
"""Exploration rate of the first and of the last iteration; linear between them."""
WARMUP_FRAMES = 100
"""Frames that replay must hold before the first gradient step. They are collected like all others."""
SETTINGS = {"hidden": 128, "gamma": 0.99, "lr": 1e-3, "tau": 0.05, "norm": 10.0}
"""Of the learner: width of the hidden layer, γ, Adam's learning rate, τ, and the norm that gradients are clipped to."""
PHASES = ("collect", "state", "sample", "optimise", "iteration")
PRELOAD = ["gymnasium", "raceway.envs", "raceway.torchrl.storages", "torchrl.data"]
"""Modules that the process engine imports once for all its workers."""

MetricsRow = dict[str, Any]


class LocalBackend:
    """Collectors and replay shards in this process."""

    def __init__(self, args: argparse.Namespace) -> None:
        storages = [SlowLocalStorage(size) for size in shard_sizes(args.buffer_size, args.replay_shards)]
        self.shards = [ReplayShard(slow_down(storage, args), number) for number, storage in enumerate(storages)]
        self.collectors = make_collectors(args, storages)
        for part in (*self.shards, *self.collectors):
            part.start()

    def publish(self, weights: Any) -> Any:
        """Return the weights as collectors take them."""
        return weights

    def collect(self, weights: Any, epsilon: float, iteration: int) -> list[list[float]]:
        """Collect the frames of an iteration; return the returns of each collector's episodes that ended."""
        collections = len(self.collectors)
        return [collector.collect(weights, epsilon, iteration, collections) for collector in self.collectors]

    def sizes(self) -> list[int]:
        """Return the number of frames in each shard."""
        return [shard.size() for shard in self.shards]

    def sample(self, requests: Sequence[SampleRequest], seeds: Sequence[int]) -> list[Any]:
        """Sample frames from the shards."""
        seeded_requests = zip(requests, seeds, strict=True)
        return [self.shards[shard].sample(num, seed) for (shard, num), seed in seeded_requests]


class DistributedBackend:
    """Collectors and replay shards as services of a Runner."""

    def __init__(self, rr: Runner, args: argparse.Namespace) -> None:
        self.rr = rr
        sizes = shard_sizes(args.buffer_size, args.replay_shards)
        storages = [SlowObjectStorage(rr, size, live=False) for size in sizes]  # ReplayShard.size() refreshes them
        shards = [ReplayShard(slow_down(storage, args), number) for number, storage in enumerate(storages)]
        self.shards = [rr.service(shard) for shard in shards]
        collectors = make_collectors(args, [storage.appender() for storage in storages])
        num_workers = min(args.workers or args.collections, args.collections)
        groups = [rr.service(CollectorGroup(collectors[worker::num_workers])) for worker in range(num_workers)]
        self.collectors = [groups[number % num_workers] for number in range(args.collections)]
        rr.get([part.start() for part in (*self.shards, *groups)])

    def publish(self, weights: Any) -> Any:
        """Store the weights once for all collectors, and return the reference."""
        return self.rr.put_object(weights)

    def collect(self, weights: Any, epsilon: float, iteration: int) -> list[list[float]]:
        """Collect the frames of an iteration; return the returns of each collector's episodes that ended."""
        collections = len(self.collectors)
        futures = [
            collector.collect(number, weights, epsilon, iteration, collections)
            for number, collector in enumerate(self.collectors)
        ]
        return self.rr.get(futures)

    def sizes(self) -> list[int]:
        """Return the number of frames in each shard."""
        return self.rr.get([shard.size() for shard in self.shards])

    def sample(self, requests: Sequence[SampleRequest], seeds: Sequence[int]) -> list[Any]:
        """Sample frames from the shards in parallel."""
        seeded_requests = zip(requests, seeds, strict=True)
        return self.rr.get([self.shards[shard].sample(num, seed) for (shard, num), seed in seeded_requests])


def make_collectors(args: argparse.Namespace, writers: Sequence[Any]) -> list[Collector]:
    """Create the collectors of an iteration."""
    options = {"num_envs": args.num_envs, "frames": args.frames_per_collection, "writers": writers, "seed": args.seed}
    return [Collector(args.env, number=number, **options) for number in range(args.collections)]


def slow_down(storage: Any, args: argparse.Namespace) -> Any:
    """Set the work and the waiting of each sampled row to those of the options; return the storage."""
    storage.sample_work, storage.sample_wait = args.sample_work, args.sample_wait
    return storage


class PhaseTimer:
    """Sums the seconds that are spent in each phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - start


class TrainingLoop:
    """The training loop and its metrics so far."""

    def __init__(
        self,
        backend: LocalBackend | DistributedBackend,
        learner: Learner,
        args: argparse.Namespace,
        report: Callable[[MetricsRow], None],
    ) -> None:
        self.backend, self.learner, self.args, self.report = backend, learner, args, report
        self.plan = SamplingPlan(args.batch_size, args.sample_parallelism)
        self.timer = PhaseTimer()
        self.num_frames = self.num_updates = 0
        self.rows: list[MetricsRow] = []
        """The metrics of each iteration."""

    def run(self) -> None:
        """Train for all iterations."""
        for iteration, epsilon in enumerate(np.linspace(*EPSILON, self.args.iterations).tolist()):
            before = dict(self.timer.seconds)
            with self.timer("iteration"):
                row = {"iteration": iteration, "epsilon": epsilon, **self.iterate(iteration, epsilon)}
            row["seconds"] = {phase: self.timer.seconds[phase] - before.get(phase, 0.0) for phase in PHASES}
            self.rows.append(row)
            self.report(row)

    def iterate(self, iteration: int, epsilon: float) -> MetricsRow:
        """Collect, then optimise; return the metrics."""
        backend, timer = self.backend, self.timer
        with timer("state"):
            weights = backend.publish(self.learner.weights())
        with timer("collect"):
            collected = backend.collect(weights, epsilon, iteration)
            returns = [episode_return for collector_returns in collected for episode_return in collector_returns]
        with timer("state"):
            sizes = backend.sizes()
        self.num_frames += self.args.collections * self.args.frames_per_collection
        num_steps = self.args.optim_steps if self.num_frames >= WARMUP_FRAMES else 0
        losses = [self.optimise(sizes) for _ in range(num_steps)]
        return {
            "buffer": sum(sizes),
            "total": self.num_frames,
            "episodes": len(returns),
            "mean_reward": float(np.mean(returns)) if returns else None,
            "loss": float(np.mean(losses)) if losses else None,
        }

    def optimise(self, sizes: Sequence[int]) -> float:
        """Sample a batch from shards of these sizes and take one gradient step; return the loss."""
        requests = range(self.args.sample_parallelism)
        seeds = [derive_seed(self.args.seed, Purpose.LEARNER, self.num_updates, request) for request in requests]
        with self.timer("sample"):
            parts = self.backend.sample(self.plan.next(sizes), seeds)
        with self.timer("optimise"):
            loss = self.learner.update(parts)
        self.num_updates += 1
        return loss

    def summary(self, seconds: float) -> dict[str, Any]:
        """Return the summary of a training that took `seconds`."""
        losses = [row["loss"] for row in self.rows if row["loss"] is not None]
        rewards = [row["mean_reward"] for row in self.rows if row["mean_reward"] is not None]
        return {
            "seconds": seconds,
            "frames": self.num_frames,
            "frames_per_second": self.num_frames / seconds,
            "first_loss": losses[0] if losses else None,
            "last_loss": losses[-1] if losses else None,
            "last_mean_reward": rewards[-1] if rewards else None,
            "timing": {
                phase: {"total": self.timer.seconds[phase], "mean": self.timer.seconds[phase] / len(self.rows)}
                for phase in PHASES
            },
        }


def run(args: argparse.Namespace, engine: str, report: Callable[[MetricsRow], None]) -> tuple[TrainingLoop, float]:
    """Train, and return the training loop and the seconds that it took, without the start of the workers."""
    torch.set_num_threads(1)
    with threadpool_limits(1):  # the last bits of a sum depend on the number of threads
        learner = Learner(args.obs_dim, args.num_actions, seed=args.seed, **SETTINGS)
        learner.warm_up(args.batch_size)
        if args.local:
            return run_timed(TrainingLoop(LocalBackend(args), learner, args, report))
        options = {"preload": PRELOAD} if engine == "process" else {}
        with Runner("torchrl-dqn", engine=engine, **options) as rr:
            return run_timed(TrainingLoop(DistributedBackend(rr, args), learner, args, report))


def run_timed(loop: TrainingLoop) -> tuple[TrainingLoop, float]:
    """Run the training loop; return it and the seconds that it took."""
    start = time.perf_counter()
    loop.run()
    return loop, time.perf_counter() - start
