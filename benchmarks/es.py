"""How ES scales with its workers when environments wait: whole iterations, weights and learner included.

python benchmarks/es.py [--milliseconds 200] [--directions 100]

Environments sleep, so that more workers than cores help. The policy has 64-64 hidden layers, as the default is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from _harness import Report
from _timed import Timed

from raceway.algorithms import find_algorithm
from raceway.machine import worker_compute_settings
from raceway.training.train import Training

BARS = {1: 1.0, 5: 4.9, 10: 9.7, 20: 19.0}  # 1 is the reference


def iterations(num_workers: int, **settings: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a function that runs one iteration of ES with a number of workers, and one that ends the run."""
    algorithm = find_algorithm("es")
    cfg = algorithm.settings(env=Timed, engine="process", num_workers=num_workers, num_shards=20, **settings)
    flow = Training(algorithm, cfg).open_flow(run=True)
    run = flow.__enter__().start()

    def iterate() -> None:
        with worker_compute_settings():
            next(run)

    def close() -> None:
        run.close()
        flow.__exit__(None, None, None)

    return iterate, close


def main() -> None:
    """Time iterations with 1, 5, 10 and 20 workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--milliseconds", type=float, default=200.0, help="duration of each episode")
    parser.add_argument("--directions", type=int, default=100, help="directions per iteration, a multiple of 20")
    options = parser.parse_args()
    report = Report("es")
    env_kwargs = {"milliseconds": options.milliseconds, "waits": True}
    reference = 0.0
    for workers, bar in BARS.items():
        iterate, close = iterations(workers, env_kwargs=env_kwargs, num_directions=options.directions)
        iterate()
        durations = []
        for _ in range(1 if workers == 1 else 3):
            start = time.perf_counter()
            iterate()
            durations.append(time.perf_counter() - start)
        close()
        median = statistics.median(durations)
        reference = reference or median
        report.row(
            f"{2 * options.directions} episodes that wait {options.milliseconds:g} ms, weights and learner included: "
            f"{workers} workers / 1",
            f"at least {bar:g}" if workers > 1 else "the reference",
            reference / median >= bar,
            speed_up=reference / median,
            seconds=median,
        )
    report.write()


if __name__ == "__main__":
    main()
