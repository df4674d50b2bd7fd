"""`raceway list`: list the algorithms, or with --runs the runs in a directory."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from raceway.commands.tables import format_age, format_table, print_lines
from raceway.errors import ConfigError

if TYPE_CHECKING:
    from raceway.runs.reader import RunFiles

_COLUMNS = ("run", "algorithm", "env", "seed", "steps", "mean return (last 100)", "fps", "status", "age")


def run(arguments: list[str]) -> int:
    """List the algorithms and the actions they support, or the runs in a directory."""
    parser = argparse.ArgumentParser(prog="raceway list", description="List the algorithms, or the runs.")
    parser.add_argument("--runs", nargs="?", const="runs", metavar="DIR", help="list the runs in a directory [runs]")
    directory = parser.parse_args(arguments).runs
    return list_algorithms() if directory is None else list_runs(Path(directory))


def list_algorithms() -> int:
    """Print a table of the algorithms and the actions they support."""
    from raceway.algorithms import ACTIONS, algorithm_names, find_algorithm

    width = max(map(len, algorithm_names())) + 2
    print(" " * width + "".join(f"{kind:15}" for kind in ACTIONS))
    for name in algorithm_names():
        algorithm = find_algorithm(name)
        marks = "".join(f"{'yes' if kind in algorithm.actions else '-':15}" for kind in ACTIONS)
        print(f"{name:{width}}{marks}{algorithm.summary}")
    return 0


def list_runs(directory: Path) -> int:
    """Print a table of the runs in a directory, the newest last."""
    from raceway.runs.reader import read_run, run_directories

    if not directory.exists() and str(directory) == "runs":
        raise ConfigError(
            "there is no directory 'runs' here. Train something first, or name another: raceway list --runs DIR"
        )
    rows, notes = list[tuple[float, tuple[str, ...]]](), list[str]()
    for path in run_directories(directory):
        try:
            run = read_run(path)
            rows.append((run.started, _row(run)))
            if run.error is not None:
                notes.append(f"{run.path} crashed: {run.error} (see {run.path / 'error.txt'})")
        except ConfigError as error:  # the others can still be listed
            notes.append(str(error))
    sorted_rows = [row for _, row in sorted(rows, key=lambda entry: entry[0])]
    print_lines(
        *format_table(_COLUMNS, sorted_rows, right=("seed", "steps", "mean return (last 100)", "fps", "age")), *notes
    )
    return 0


def _row(run: RunFiles) -> tuple[str, ...]:
    from raceway.runs.reader import numeric_value
    from raceway.settings.progress import TIMESTEPS

    fps = numeric_value(run.last, "time/fps")
    return (
        str(run.path),
        run.algorithm,
        run.env,
        str(run.seed),
        f"{run.steps:,}" if run.progress is TIMESTEPS else f"{run.steps:,} {run.progress.noun}",
        "-" if run.mean_return is None else f"{run.mean_return:.1f}",
        "-" if fps is None else f"{fps:,.0f}",
        run.status,
        format_age(time.time() - run.started),
    )
