"""How a service scales with its workers when tasks wait rather than compute, as slow environments do.

python benchmarks/scaling.py [--tasks 400] [--milliseconds 50]
"""

from __future__ import annotations

import argparse
import statistics
import time

from _harness import Report, seconds

from raceway.runner import Runner

BARS = {1: 1.0, 5: 4.9, 10: 9.7, 20: 19.0}  # 1 is the reference


def nap(duration: float) -> None:
    """Sleep, as an environment that waits for something does."""
    time.sleep(duration)


def main() -> None:
    """Time the same tasks on 1, 5, 10 and 20 workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400, help="tasks in a round")
    parser.add_argument("--milliseconds", type=float, default=50.0, help="how long each sleeps")
    options = parser.parse_args()
    report = Report("scaling")
    duration = options.milliseconds / 1000
    alone = 0.0
    for workers, bar in BARS.items():
        with Runner("scaling", engine="process", workers=workers) as rr:
            service = rr.service(nap, warmup=workers)
            rr.get([service(0.0) for _ in range(workers)])
            rounds = [
                seconds(lambda service=service, rr=rr: rr.get([service(duration) for _ in range(options.tasks)]))
                for _ in range(1 if workers == 1 else 3)
            ]
        taken = statistics.median(rounds)
        alone = alone or taken
        report.row(
            f"{options.tasks} tasks of {options.milliseconds:g} ms, {workers} workers, speed-up over 1",
            f"at least {bar:g}" if workers > 1 else "the reference",
            alone / taken >= bar,
            speed_up=alone / taken,
            seconds=taken,
        )
    report.write()


if __name__ == "__main__":
    main()
