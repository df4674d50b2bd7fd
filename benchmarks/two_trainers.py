"""PPO and DQN in one PettingZoo environment: whether both policies improve.

python benchmarks/two_trainers.py [--seeds 3] [--steps 300000]

The settings are those of the example. The first eighth of the iterations is compared with the last, by the mean return
of their episodes, over all seeds; the intervals are bootstrap intervals of the mean.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from _harness import Report

from raceway.runs.statistics import bootstrap_interval

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "two_trainers"))

from main import train


def mean(values: np.ndarray) -> float:
    """Return the mean."""
    return float(values.mean())


def main() -> None:
    """Train with every seed and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300_000)
    options = parser.parse_args()
    parts: dict[str, list[list[np.ndarray]]] = {}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as directory:
            returns_of = train(options.steps, seed=seed, engine="inline", run_dir=f"{directory}/run")
        for name, returns in returns_of.items():
            parts.setdefault(name, []).append(np.array_split(returns, 8))
        print(f"seed {seed}: " + ", ".join(f"{name} {mean(eighths[-1][-1]):.2f}" for name, eighths in parts.items()))
    report = Report("two_trainers")
    for name, eighths in parts.items():
        first, last = (np.concatenate([seed[index] for seed in eighths]) for index in (0, -1))
        before, after = bootstrap_interval(first, mean), bootstrap_interval(last, mean)
        report.row(
            f"{name}'s policy in simple_spread, trained beside the other: mean return of the first and the last eighth",
            "intervals do not overlap",
            after[0] > before[1],
            first=mean(first),
            first_interval=f"{before[0]:.2f} to {before[1]:.2f}",
            last=mean(last),
            last_interval=f"{after[0]:.2f} to {after[1]:.2f}",
            iterations=len(first),
        )
    report.write()


if __name__ == "__main__":
    main()
