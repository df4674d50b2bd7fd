"""How training scales from one worker to two: DD-PPO, which trains on the workers, and PPO, which trains in the driver.

python benchmarks/decentralised.py [--only ddppo ppo] [--rounds 3] [--timesteps 200000]

Both train on HalfCheetah-v5 with their presets, on the process engine. The runs with one and with two workers
alternate, and the rate of a run is that of its iterations after the first fifth, in which losses are compiled.
The weights must be the same bytes. PPO's rate is beside it: only its rollouts are distributed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from typing import Any

from _harness import Report

from raceway.training.train import train

BARS = {"ddppo": 1.7, "ppo": None}
WORKERS = (1, 2)


def measure(algorithm: str, workers: int, timesteps: int) -> tuple[float, str]:
    """Train, and return environment steps per second and the hash of the weights."""
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"num_workers": workers, "engine": "process", "save_seconds": 0, "progress": False}
        result = train(
            algorithm, env="halfcheetah", total_timesteps=timesteps, run_dir=f"{folder}/run", metrics_interval=0.0,
            **settings,
        )  # fmt: skip
        rows = result.metrics
    first, last = rows[len(rows) // 5], rows[-1]
    steps, seconds = (last[f"time/{name}"] - first[f"time/{name}"] for name in ("total_timesteps", "time_elapsed"))
    return steps / seconds, result.summary["weights_sha256"]


def compare(report: Report, algorithm: str, rounds: int, timesteps: int) -> None:
    """Measure an algorithm with one and with two workers, in turn, and add a row."""
    rates: dict[int, list[float]] = {workers: [] for workers in WORKERS}
    hashes = set()
    for _ in range(rounds):
        for workers in WORKERS:
            rate, weights = measure(algorithm, workers, timesteps)
            rates[workers].append(rate)
            hashes.add(weights)
    alone, together = (statistics.median(rates[workers]) for workers in WORKERS)
    bar = BARS[algorithm]
    report.row(
        f"{algorithm} on HalfCheetah-v5, speed-up of 2 workers over 1",
        "none" if bar is None else f"at least {bar:g}, the same weights",
        (bar is None or together / alone >= bar) and len(hashes) == 1,
        speed_up=together / alone,
        steps_per_s={workers: [round(rate) for rate in rates[workers]] for workers in WORKERS},
        same_weights=len(hashes) == 1,
        load=os.getloadavg()[0],
    )


def main() -> None:
    """Run the selected rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timesteps", type=int, default=200_000)
    options = parser.parse_args()
    report = Report("decentralised")
    for algorithm in options.only:
        compare(report, algorithm, options.rounds, options.timesteps)
        report.write(keep=True)


if __name__ == "__main__":
    main()
