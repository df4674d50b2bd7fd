"""Training while workers are killed at random instants, compared with an undisturbed run.

The two runs alternate every few seconds, so that they see the same machine load. Fragments are tracked by shard and
sequence number: none may be missing or duplicated, and every fragment must be complete.

python benchmarks/chaos.py [--minutes 10] [--every 5] [--algorithm a3c] [--env Pendulum-v1]
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from _harness import Report

from raceway.algorithms import find_algorithm
from raceway.flow import Event
from raceway.training.train import Training

BAR = 0.7
"""Minimum ratio to the rate of the undisturbed run."""
TURN = 30.0  # seconds
_MAX_RESTARTS = 10**6  # within a minute


class Side(Training):
    """A run that trains for some seconds at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        algorithm = find_algorithm(args.algorithm)
        settings = {"num_workers": 2, "num_shards": 2, "vector": "stepped", "total_timesteps": 10**9}
        super().__init__(
            algorithm, algorithm.settings(env=args.env, engine="process", max_restarts=_MAX_RESTARTS, **settings)
        )
        self.seconds, self.num_restarts = 0.0, 0
        self.sequences: dict[int, list[int]] = {}  # sequence numbers of the fragments, by shard

    def _spawn(self, engine: Any) -> Any:
        self.workers = super()._spawn(engine)
        return self.workers

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the run and subscribe to its events."""
        with self.open_flow(run=True) as flow, flow.start() as self.iterations:
            next(self.iterations)  # workers are up
            self.iterations.subscribe(self._on_event)
            self.before = self.report.timesteps, self.report.iterations
            yield

    def _on_event(self, event: Event) -> None:
        self.num_restarts += event.kind == "restarted"
        for _, shard, sequence, *_ in event.data["items"] if event.kind == "items" else ():
            self.sequences.setdefault(shard, []).append(sequence)

    def train_for(self, seconds: float) -> None:
        """Train for a number of seconds."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            next(self.iterations)
        self.seconds += time.perf_counter() - begin

    @property
    def rate(self) -> float:
        """Environment steps per second."""
        return (self.report.timesteps - self.before[0]) / self.seconds

    def num_lost_and_duplicated(self) -> tuple[int, int]:
        """Return the numbers of missing and of duplicated fragments."""
        self.iterations.emit_counters(now=True)
        lost = sum(max(numbers) - min(numbers) + 1 - len(set(numbers)) for numbers in self.sequences.values())
        return lost, sum(len(numbers) - len(set(numbers)) for numbers in self.sequences.values())

    @property
    def is_exact(self) -> bool:
        """Whether every iteration was complete."""
        cfg = self.cfg
        shards = 1 if self.algorithm.name in ("a3c", "impala") else cfg.num_shards
        steps = cfg.num_envs // cfg.num_shards * cfg.fragment_steps * shards
        return self.report.timesteps == self.report.iterations * steps


class Killer(threading.Thread):
    """Kills a random worker at Poisson instants while `enabled` is set."""

    def __init__(self, workers: list[Any], every: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.workers, self.every, self.random = workers, every, random.Random(seed)
        self.num_kills, self.enabled, self.stopped = 0, threading.Event(), threading.Event()

    def run(self) -> None:
        """Wait and kill until stopped."""
        while not self.stopped.wait(self.random.expovariate(1 / self.every)):
            self.enabled.wait()
            pid = self.random.choice(self.workers).pid
            if pid is not None:  # the worker may be restarting
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.num_kills += 1


def main() -> None:
    """Run both sides and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of training per side")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between two kills")
    parser.add_argument("--algorithm", default="a3c", choices=["a3c", "a2c", "ppo", "impala"])
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the kills")
    args = parser.parse_args()
    logging.getLogger("raceway").setLevel(logging.ERROR)
    killed, alone, report = Side(args), Side(args), Report("chaos")
    with ExitStack() as stack:
        stack.enter_context(killed.started())
        stack.enter_context(alone.started())
        killer = Killer(killed.workers, args.every, args.seed)
        killer.start()
        turns = max(1, round(args.minutes * 60 / TURN))
        for _ in range(turns):
            killer.enabled.set()
            killed.train_for(args.minutes * 60 / turns)
            killer.enabled.clear()
            alone.train_for(args.minutes * 60 / turns)
        killer.stopped.set()
        killer.enabled.set()
        killer.join()
        lost, duplicated = killed.num_lost_and_duplicated()
    ratio = killed.rate / alone.rate
    what = f"{args.algorithm} on {args.env}, a kill every {args.every:g} s for {args.minutes:g} min"
    report.row(
        f"{what}: rate / rate of an undisturbed run", f"at least {BAR}", ratio >= BAR,
        ratio=ratio, steps_per_s=killed.rate, undisturbed_per_s=alone.rate, kills=killer.num_kills,
        restarts=killed.num_restarts,
    )  # fmt: skip
    num_fragments = sum(map(len, killed.sequences.values()))
    report.row(
        f"{what}: fragments lost or duplicated", "none, and all complete",
        lost == duplicated == 0 and killed.is_exact,
        lost=lost, duplicated=duplicated, fragments=num_fragments, exact=killed.is_exact,
    )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
