"""The paper's IMPALA measurements: sampling with a one-parameter policy (figure 8), training (table 2, figure 9).

python benchmarks/paper.py [--only sampling training] [--workers 1 2 4 8 16] [--pairs 25]

The same algorithm three times: as a flow on the ray engine, by hand on bare Ray actors with `ray.wait`, and as the same
flow on the process engine. They alternate in short slices, the last one in every third turn.

Both programs on Ray have the same workers, learner and Ray, which the engine started (so the workers of both have
ordinary priority). They differ in the flow, in how values travel, and in that the flow's workers keep freed memory.
Pairs of slices vary by a tenth here, so each row has a 90 % bootstrap interval of the median, to tell a miss from
noise. One more row compares the mean of all rows with 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from _harness import RESULTS, Report
from gymnasium import spaces
from torch import Tensor, nn

from raceway.algorithms import find_algorithm
from raceway.algorithms.impala import loss
from raceway.engine import make_engine
from raceway.flow import Shard
from raceway.machine import worker_compute_settings
from raceway.ops import AddLogProbs, RolloutSettings, RolloutWorker
from raceway.ops.batches import concat_fragments
from raceway.rl import Batch, num_steps
from raceway.training.train import Training

SAMPLING = {"env": "CartPole-v1", "fragment_steps": 250}
BATCH = 100_000  # environment steps per update
ENVS_PER_WORKER = 20
IN_FLIGHT = 2  # fragments that a worker has queued while the learner is busy with another, on all sides


class Scalar(nn.Module):
    """A network with one parameter, its output for every observation."""

    def __init__(self, scalar: nn.Parameter, num: int) -> None:
        super().__init__()
        self.scalar, self.num = scalar, num

    def forward(self, obs: Tensor) -> Tensor:
        return self.scalar.expand(*obs.shape[:-1], self.num)


def scalar(observation_space: spaces.Space, action_space: Any) -> tuple[nn.Module, nn.Module]:
    """Return the actor and the critic: the same parameter."""
    shared = nn.Parameter(torch.zeros(()))
    return Scalar(shared, int(action_space.n)), Scalar(shared, 1)


class BareRolloutWorker(RolloutWorker):
    """A worker that numbers its own items and runs the operators that a flow would run on its shard."""

    def __init__(self, settings: RolloutSettings, cfg: Any, number: int) -> None:
        torch.set_num_threads(1)
        super().__init__(settings)
        self.shard, self.number = Shard(number, settings.num_shards, settings.seed), 0
        self.add = AddLogProbs(cfg.gamma, cfg.scale_rewards)

    def collect(self) -> Batch:
        """Return the next fragment."""
        self.number += 1
        return self.add(self.sample(shard=self.shard, number=self.number - 1), actor=self)


def by_hand(training: Training) -> Iterator[int]:
    """Run IMPALA as one would write it on Ray actors; yield the environment steps of each batch."""
    cfg, learner = training.cfg, training.learner
    make = ray.remote(num_cpus=0)(BareRolloutWorker)
    actors = [make.remote(training.rollouts, cfg, number) for number in range(cfg.num_shards)]
    weights = ray.put(learner.agent.weights())
    out = {}
    for actor in actors:
        actor.set_weights.remote(weights)
        out.update({actor.collect.remote(): actor for _ in range(IN_FLIGHT)})
    held: list[tuple[Any, Batch]] = []
    while True:
        (done,), _ = ray.wait(list(out), num_returns=1)
        actor = out.pop(done)
        held.append((actor, ray.get(done)))
        out[actor.collect.remote()] = actor
        if sum(num_steps(fragment) for _, fragment in held) >= cfg.batch_steps:
            batch = concat_fragments([fragment for _, fragment in held])
            learner.train(partial(loss, cfg=cfg), batch)
            weights = ray.put(learner.agent.weights())
            for actor in {actor for actor, _ in held}:
                actor.set_weights.remote(weights)
            held = []
            yield num_steps(batch)


def as_flow(run: Iterator[dict[str, Any]], training: Training) -> Iterator[int]:
    """Run the plan of `raceway train impala`; yield the environment steps of each batch."""
    before = 0
    for _ in run:
        yield training.report.timesteps - before
        before = training.report.timesteps


def rate_of(program: Iterator[int], seconds: float, num_old: int) -> Callable[[], float]:
    """Return a function that runs a program for some seconds and returns environment steps per second.

    The first `num_old` batches are not timed: they were collected or requested while the other sides had their turns.
    """

    def read() -> float:
        for _ in range(num_old):
            next(program)
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            steps += next(program)
        return steps / (time.perf_counter() - start)

    return read


def compare(settings: dict[str, Any], num_workers: int, seconds: float, pairs: int) -> dict[str, float]:
    """Return medians over pairs of slices: flow / by hand with its interval, and process engine / by hand.

    In half of the pairs the flow's workers were started before the other's, in half after.
    """
    names, turns = ("ray", "by_hand", "process"), list[dict[str, float]]()
    for order in (names, ("by_hand", "ray", "process")):
        turns += measure_turns(settings, num_workers, seconds, -(-pairs // 2), order)
    ratios = {name: [turn[name] / turn["by_hand"] for turn in turns if name in turn] for name in ("ray", "process")}
    low, high = interval(ratios["ray"])
    medians = {f"{name}_per_s": statistics.median(turn[name] for turn in turns if name in turn) for name in names}
    return {
        "ratio": statistics.median(ratios["ray"]), "low": low, "high": high,
        "process_ratio": statistics.median(ratios["process"]), **medians,
    }  # fmt: skip


def measure_turns(
    settings: dict[str, Any], num_workers: int, seconds: float, pairs: int, order: tuple[str, ...]
) -> list[dict[str, float]]:
    """Start the sides in the given order and return their environment steps per second in every turn."""

    def training(engine: str) -> Training:
        shards = {"num_workers": num_workers, "num_shards": num_workers, "engine": engine}
        algorithm = find_algorithm("impala")
        # A flow counts the fragment that is being consumed among the outstanding ones of a shard.
        return Training(algorithm, algorithm.settings(**settings, **shards, num_async=IN_FLIGHT + 1, stop_seconds=1e9))

    num_old = -(-(IN_FLIGHT + 1) * settings["num_envs"] * settings["fragment_steps"] // settings["batch_steps"])
    sides: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        stack.enter_context(worker_compute_settings())
        stack.enter_context(make_engine("ray"))  # starts Ray
        for name in order:
            side = training("process" if name == "process" else "ray")
            if name == "by_hand":
                program = by_hand(side)
            else:
                plan = stack.enter_context(side.open_flow(run=True))
                program = as_flow(stack.enter_context(plan.start()), side)
            sides[name] = rate_of(program, seconds, num_old)
            sides[name]()
        turns: list[dict[str, float]] = []
        for turn in range(pairs):
            names = [name for name in sides if name != "process" or turn % 3 == 0]
            turns.append({name: sides[name]() for name in (names if turn % 2 == 0 else reversed(names))})
    return turns


def interval(values: list[float], level: float = 0.9, num_samples: int = 10_000) -> tuple[float, float]:
    """Return a bootstrap interval of the median."""
    samples = np.random.default_rng(0).choice(values, (num_samples, len(values)))
    low, high = np.quantile(np.median(samples, 1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sampling(report: Report, workers: list[int], pairs: int) -> None:
    """Figure 8: sampling throughput when learning costs nothing."""
    for num in workers:
        settings = SAMPLING | {"network": scalar, "num_envs": ENVS_PER_WORKER * num, "batch_steps": BATCH}
        measured = compare(settings, num, 1.0, pairs)
        add(report, f"sampling, a one-parameter policy, batches of 100K, {num} workers", measured)


def training(report: Report, workers: list[int], pairs: int) -> None:
    """Table 2 and figure 9: training throughput of IMPALA."""
    # A batch of Atari takes long, so it is small: sides that alternate quickly see the same machine load.
    for env, num_envs, steps, seconds in (
        ("Pendulum-v1", 32, 50, 0.7),
        ("ALE/Pong-v5", 8, 20, 0.8),
        ("ALE/Breakout-v5", 8, 20, 0.8),
    ):
        for num in [count for count in workers if count <= 8]:
            settings = {"env": env, "num_envs": num_envs, "fragment_steps": steps, "batch_steps": num_envs * steps}
            add(report, f"IMPALA on {env}, {num} workers", compare(settings, num, seconds, pairs))


def add(report: Report, what: str, measured: dict[str, float]) -> None:
    """Add a row that compares the flow with the program by hand."""
    what = f"{what}: flow on ray / by hand on bare Ray"
    report.row(what, "at least 1", measured["ratio"] >= 1, **measured)


def finish(report: Report) -> None:
    """Write the rows together with earlier ones, add their geometric mean, and plot them."""
    summary = "all rows"
    report.write(keep=True)
    path = RESULTS / f"{report.name}.json"
    results = json.loads(path.read_text())
    rows = sorted((row for row in results["rows"] if row["what"] != summary), key=sort_key)
    mean = statistics.geometric_mean(row["ratio"] for row in rows)
    report.row(summary, "at least 1", mean >= 1, ratio=mean)
    path.write_text(json.dumps({**results, "rows": [*rows, report.rows[-1]]}, indent=2) + "\n")
    plot(rows, RESULTS / f"{report.name}.png")


def sort_key(row: dict[str, Any]) -> tuple[bool, str, int]:
    """Return the sort key of a row: sampling first, then environments, each by the number of workers."""
    title, num = parse_row(row)
    return not title.startswith("sampling"), title, num


def parse_row(row: dict[str, Any]) -> tuple[str, int]:
    """Return the title of a row and its number of workers."""
    title, _, rest = row["what"].rpartition(", ")
    return title, int(rest.split()[0])


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Plot environment steps per second by the number of workers."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    groups: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for row in rows:
        title, num = parse_row(row)
        groups.setdefault(title, []).append((num, row))
    figure, axes = plt.subplots(1, len(groups), figsize=(4.2 * len(groups), 3.4), squeeze=False)
    names = {"process_per_s": "flow, process engine", "ray_per_s": "flow, ray engine", "by_hand_per_s": "bare Ray"}
    for axis, (title, points) in zip(axes[0], groups.items(), strict=True):
        for name, label in names.items():
            axis.plot([num for num, _ in points], [row[name] for _, row in points], marker="o", label=label)
        axis.set(title=title.replace(", a one-parameter policy, batches of 100K", ", one parameter"), xlabel="workers")
        axis.set_xscale("log", base=2)
        axis.set_xticks([num for num, _ in points], [str(num) for num, _ in points])
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("steps/s")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


PARTS = {"sampling": sampling, "training": training}


def main() -> None:
    """Run the selected parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--pairs", type=int, default=25)
    options = parser.parse_args()
    report = Report("paper")
    for name in options.only:
        PARTS[name](report, options.workers, options.pairs)
    finish(report)


if __name__ == "__main__":
    main()
