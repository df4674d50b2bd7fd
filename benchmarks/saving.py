"""The cost of saving, as a share of training time at the default of one checkpoint every two minutes.

python benchmarks/saving.py [--seconds 20]

Each run saves much more often, so that there is something to measure; the duration of a checkpoint is then divided by
two minutes. Runs that save alternate with runs that do not, to compare their rates.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from _harness import Report, seconds

from raceway.checkpoints.store import Checkpoints
from raceway.replay import Replay
from raceway.training.train import train

DEFAULT = 120.0
"""Default seconds between two checkpoints."""
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo, HalfCheetah": ("ppo", {"env": "halfcheetah"}),
    "ppo, CartPole": ("ppo", {"env": "cartpole"}),
    "dqn, CartPole, 100,000 transitions": (
        "dqn",
        {"env": "cartpole", "buffer_size": 100_000, "learning_starts": 90_000},
    ),
}


def run(name: str, folder: Path, length: float, every: float) -> Any:
    """Train for `length` seconds, saving every `every` seconds."""
    algorithm, settings = RUNS[name]
    path = folder / "run"
    shutil.rmtree(path, ignore_errors=True)
    limits = {"stop_seconds": length, "save_seconds": every}
    return train(algorithm, run_dir=str(path), progress=False, **limits, **settings)


def cost(report: Report, folder: Path, length: float) -> None:
    """Measure the duration of a checkpoint, and the rate of runs that save every two seconds."""
    for name in RUNS:
        durations: list[float] = []
        rates: dict[float, list[float]] = {0.0: [], 2.0: []}
        for _ in range(3):
            for every, fps in rates.items():
                result = run(name, folder, length, every)
                fps.append(result.summary["fps"])
                durations += [row["time/save_seconds"] for row in result.metrics if "time/save_seconds" in row]
        share = statistics.mean(durations) / DEFAULT
        ratio = statistics.median(rates[2.0]) / statistics.median(rates[0.0])
        report.row(
            f"{name}: a checkpoint, as a share of two minutes", "under 2 %", share < 0.02, percent=100 * share,
            milliseconds=1000 * statistics.mean(durations), checkpoints=len(durations), rate_saving_every_2_s=ratio,
        )  # fmt: skip


def million(report: Report, folder: Path) -> None:
    """Save a buffer of a million transitions, insert some more, and save it again."""
    random, size = np.random.default_rng(0), 17

    def rows(num: int) -> dict[str, np.ndarray]:
        return {
            "obs": random.normal(size=(num, size)).astype(np.float32),
            "next_obs": random.normal(size=(num, size)).astype(np.float32),
            "action": random.normal(size=(num, 6)).astype(np.float32),
            "reward": random.normal(size=num).astype(np.float32),
            "discount": np.full(num, 0.99, np.float32),
        }

    replay, checkpoints = Replay(1_000_000, seed=0), Checkpoints(folder / "replay")
    replay.insert(rows(1_000_000))
    written = []
    times = []
    for number in range(4):
        before = size_of(folder)
        times.append(seconds(lambda steps=number: checkpoints.save({"replay": replay.state()}, {"steps": steps})))
        written.append(size_of(folder) - before)
        replay.insert(rows(24_000))  # two minutes at 200 environment steps per second
    share = statistics.mean(times[1:]) / DEFAULT
    report.row(
        "a million transitions, saved again after 24,000 more: a share of two minutes", "under 2 %", share < 0.02,
        percent=100 * share, seconds=statistics.mean(times[1:]), first_seconds=times[0],
        megabytes=statistics.mean(written[1:]) / 1e6, first_megabytes=written[0] / 1e6,
    )  # fmt: skip


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a directory."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of each run")
    options = parser.parse_args()
    report = Report("saving")
    with tempfile.TemporaryDirectory() as folder:
        million(report, Path(folder))
        cost(report, Path(folder), options.seconds)
    report.write()


if __name__ == "__main__":
    main()
