"""Shared by the benchmarks: interleaved blocks, so that both sides see the same machine load, and results as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def seconds(work: Callable[[], Any], times: int = 1) -> float:
    """Return the mean duration of `work` over a number of runs."""
    start = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - start) / times


def interleave(sides: dict[str, Callable[[], Any]], blocks: int, times: int, warm_up: int = 20) -> dict[str, float]:
    """Run the sides in alternating blocks and return the median duration of one run of each."""
    durations: dict[str, list[float]] = {name: [] for name in sides}
    for work in sides.values():
        seconds(work, warm_up)
    for _ in range(blocks):
        for name, work in sides.items():
            durations[name].append(seconds(work, times))
    return {name: statistics.median(values) for name, values in durations.items()}


class Report:
    """Print rows as they are measured, and write all of them as JSON."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []

    def row(self, what: str, bar: str, met: bool, **measured: Any) -> None:
        """Record a measurement with the target (bar) that it is held to."""
        text = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in measured.items()
        )
        print(f"{'ok  ' if met else 'MISS'}  {what}: {text}   (bar: {bar})", flush=True)
        self.rows.append({"what": what, "bar": bar, "met": met, **measured})

    def write(self, *, keep: bool = False) -> None:
        """Write the rows with the commit and the machine they were measured on.

        Args:
            keep: keep earlier rows that were not measured this time, each with its commit.
        """
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        commit, path, earlier = git.stdout.strip(), RESULTS / f"{self.name}.json", list[dict[str, Any]]()
        RESULTS.mkdir(exist_ok=True)
        if keep and path.exists():
            old, measured = json.loads(path.read_text()), {row["what"] for row in self.rows}
            earlier = [{"commit": old["commit"], **row} for row in old["rows"] if row["what"] not in measured]
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
        text = json.dumps({"commit": commit, "machine": machine, "rows": [*earlier, *self.rows]}, indent=2)
        path.write_text(text + "\n")
        print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
