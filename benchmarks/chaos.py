"""Training while its workers are killed, one after the other, at random instants, beside a run that is left alone.

Both take turns of some seconds, so they see the same machine. What comes from every shard is counted by its sequence
numbers: nothing may be missing or come twice, and every fragment has all its steps.

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
"""Of the rate of the run that is left alone."""
TURN = 30.0  # seconds
_OFTEN = 10**6  # restarts that are borne within a minute


class Side(Training):
    """A run that goes on for some seconds at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        found = find_algorithm(args.algorithm)
        settings = {"num_workers": 2, "num_shards": 2, "vector": "stepped", "total_timesteps": 10**9}
        super().__init__(found, found.settings(env=args.env, engine="process", max_restarts=_OFTEN, **settings))
        self.seconds, self.num_restarts = 0.0, 0
        self.came: dict[int, list[int]] = {}  # the sequence numbers of every shard

    def _spawn(self, engine: Any) -> Any:
        self.workers = super()._spawn(engine)
        return self.workers

    @contextmanager
    def started(self) -> Iterator[None]:
        """Have it run, and listen to it."""
        with self.planned(run=True) as flow, flow.start() as self.iterations:
            next(self.iterations)  # workers are up
            self.iterations.subscribe(self._hear)
            self.before = self.report.timesteps, self.report.iterations
            yield

    def _hear(self, event: Event) -> None:
        self.num_restarts += event.kind == "restarted"
        for _, shard, sequence, *_ in event.data["items"] if event.kind == "items" else ():
            self.came.setdefault(shard, []).append(sequence)

    def go_on(self, seconds: float) -> None:
        """Train for so long."""
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            next(self.iterations)
        self.seconds += time.perf_counter() - begin

    @property
    def rate(self) -> float:
        """Steps a second."""
        return (self.report.timesteps - self.before[0]) / self.seconds

    def num_lost_and_doubled(self) -> tuple[int, int]:
        """Return how many fragments are missing, and how many came twice, of those that were heard of."""
        self.iterations.tick(now=True)
        lost = sum(max(came) - min(came) + 1 - len(set(came)) for came in self.came.values())
        return lost, sum(len(came) - len(set(came)) for came in self.came.values())

    @property
    def is_exact(self) -> bool:
        """Whether every iteration had all its steps."""
        cfg = self.cfg
        shards = 1 if self.algorithm.name in ("a3c", "impala") else cfg.num_shards
        each = cfg.num_envs // cfg.num_shards * cfg.fragment_steps * shards
        return self.report.timesteps == self.report.iterations * each


class Killer(threading.Thread):
    """Kills one of some workers at Poisson instants, while it is let."""

    def __init__(self, workers: list[Any], every: float, seed: int) -> None:
        super().__init__(daemon=True)
        self.workers, self.every, self.random = workers, every, random.Random(seed)
        self.num_kills, self.may, self.over = 0, threading.Event(), threading.Event()

    def run(self) -> None:
        """Wait and kill."""
        while not self.over.wait(self.random.expovariate(1 / self.every)):
            self.may.wait()
            pid = self.random.choice(self.workers).pid
            if pid is not None:  # it may be on its way up
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.num_kills += 1


def main() -> None:
    """Run both sides, and compare them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="of each side")
    parser.add_argument("--every", type=float, default=5.0, help="mean seconds between two kills")
    parser.add_argument("--algorithm", default="a3c", choices=["a3c", "a2c", "ppo", "impala"])
    parser.add_argument("--env", default="Pendulum-v1")
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
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
            killer.may.set()
            killed.go_on(args.minutes * 60 / turns)
            killer.may.clear()
            alone.go_on(args.minutes * 60 / turns)
        killer.over.set()
        killer.may.set()
        killer.join()
        lost, doubled = killed.num_lost_and_doubled()
    ratio = killed.rate / alone.rate
    what = f"{args.algorithm} on {args.env}, a kill every {args.every:g} s for {args.minutes:g} min"
    report.row(
        f"{what}: rate by that of a run left alone", f"at least {BAR}", ratio >= BAR,
        ratio=ratio, steps_a_second=killed.rate, left_alone=alone.rate, kills=killer.num_kills,
        restarts=killed.num_restarts,
    )  # fmt: skip
    heard = sum(map(len, killed.came.values()))
    report.row(
        f"{what}: fragments lost or doubled", "none, and every one with all its steps",
        lost == doubled == 0 and killed.is_exact, lost=lost, doubled=doubled, fragments=heard, exact=killed.is_exact,
    )  # fmt: skip
    report.write()


if __name__ == "__main__":
    main()
