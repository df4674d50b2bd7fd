"""What the benchmarks share: blocks that take turns, so that both sides see the same machine, and results as JSON."""

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
    """Return how long one run of `work` takes, over so many."""
    begin = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - begin) / times


def taking_turns(sides: dict[str, Callable[[], Any]], blocks: int, times: int, warm_up: int = 20) -> dict[str, float]:
    """Run each side in blocks, one after the other, and return the median seconds of one run of each."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for work in sides.values():
        seconds(work, warm_up)
    for _ in range(blocks):
        for name, work in sides.items():
            taken[name].append(seconds(work, times))
    return {name: statistics.median(values) for name, values in taken.items()}


class Report:
    """Prints rows as they are measured and writes them all as JSON."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[dict[str, Any]] = []

    def row(self, what: str, bar: str, met: bool, **figures: Any) -> None:
        """Record one figure with the bar that it is held to."""
        shown = ", ".join(
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
        )
        print(f"{'ok  ' if met else 'MISS'}  {what}: {shown}   (bar: {bar})", flush=True)
        self.rows.append({"what": what, "bar": bar, "met": met, **figures})

    def write(self, *, keep: bool = False) -> None:
        """Write the rows beside the commit and the machine they were measured on.

        If only a part was run, rows of others that were written before can be kept, with the commit they are of.
        """
        git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        commit, path, before = git.stdout.strip(), RESULTS / f"{self.name}.json", list[dict[str, Any]]()
        RESULTS.mkdir(exist_ok=True)
        if keep and path.exists():
            old, new = json.loads(path.read_text()), {row["what"] for row in self.rows}
            before = [{"commit": old["commit"], **row} for row in old["rows"] if row["what"] not in new]
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()}
        text = json.dumps({"commit": commit, "machine": machine, "rows": [*before, *self.rows]}, indent=2)
        path.write_text(text + "\n")
        print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
