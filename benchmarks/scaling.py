"""How a service scales with its workers when tasks sleep instead of computing, as slow environments do.

python benchmarks/scaling.py [--tasks 400] [--milliseconds 50]
"""

from __future__ import annotations

import argparse
import statistics
import time

from _harness import Report, seconds

from raceway.runner import Runner

BARS = {1: 1.0, 5: 4.9, 10: 9.7, 20: 19.0}  # 1 is the reference


def sleep_task(duration: float) -> None:
    """Sleep, like an environment that waits for something."""
    time.sleep(duration)


def main() -> None:
    """Time the same tasks on 1, 5, 10 and 20 workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=400, help="tasks per round")
    parser.add_argument("--milliseconds", type=float, default=50.0, help="duration of each task")
    options = parser.parse_args()
    report = Report("scaling")
    duration = options.milliseconds / 1000
    reference = 0.0
    for workers, bar in BARS.items():
        with Runner("scaling", engine="process", workers=workers) as rr:
            service = rr.service(sleep_task, warmup=workers)
            rr.get([service(0.0) for _ in range(workers)])
            rounds = [
                seconds(lambda service=service, rr=rr: rr.get([service(duration) for _ in range(options.tasks)]))
                for _ in range(1 if workers == 1 else 3)
            ]
        median = statistics.median(rounds)
        reference = reference or median
        report.row(
            f"{options.tasks} tasks of {options.milliseconds:g} ms, {workers} workers, speed-up over 1",
            f"at least {bar:g}" if workers > 1 else "the reference",
            reference / median >= bar,
            speed_up=reference / median,
            seconds=median,
        )
    report.write()


if __name__ == "__main__":
    main()
