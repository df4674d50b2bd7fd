"""Learning with more workers: the asynchronous algorithms on CartPole, with 1, 2, 4 and 8 shards and as many workers.

python benchmarks/workers.py [--only impala appo impact a3c apex] [--workers 1 2 4 8] [--seeds 3] [--first-seed 10]

The learning batch of these algorithms is a setting, so the return must not depend on how far they are distributed. The
return is that of the last 100 training episodes at the end of the run; the seeds are not those that the presets were
chosen with. Rows that are not measured again are kept.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile

from _harness import Report

from raceway.training.train import train

ALGORITHMS = ("impala", "appo", "impact", "a3c", "apex")
BAR = 475.0


def measure(report: Report, algorithm: str, workers: int, seeds: range) -> None:
    """Train with several seeds and add a row."""
    returns, rates = [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"num_workers": workers, "num_shards": workers, "engine": "process", "seed": seed}
            result = train(algorithm, env="cartpole", run_dir=f"{folder}/run", progress=False, **settings)
        returns.append(result.summary["mean_return"])
        rates.append(result.summary["fps"])
    mean = statistics.mean(returns)
    report.row(
        f"{algorithm} on CartPole-v1, {workers} workers",
        f"{BAR:g}",
        mean >= BAR,
        mean=mean,
        seeds=[round(value, 1) for value in returns],
        first_seed=seeds.start,
        steps_per_s=statistics.median(rates),
        load=os.getloadavg()[0],
    )


def main() -> None:
    """Run the selected rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=10)
    options = parser.parse_args()
    report = Report("workers")
    for algorithm in options.only:
        for workers in options.workers:
            measure(report, algorithm, workers, range(options.first_seed, options.first_seed + options.seeds))
            report.write(keep=True)


if __name__ == "__main__":
    main()
