"""Runs that are over, or still going on: finding their folders, and reading what is in them."""

from __future__ import annotations

import difflib
import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from raceway.checkpoints.files import open_own
from raceway.errors import ConfigError
from raceway.runs.schema import last_row, read_config, read_json, read_metrics
from raceway.schema import schema_mismatch

ENDED_EARLY = ("interrupt", "terminated")
"""What a summary's `stopped_by` says of a run that somebody ended."""


@dataclass(frozen=True)
class RunFiles:
    """What the folder of a run says."""

    path: Path
    algorithm: str
    env: str
    seed: int
    config: Mapping[str, Any]
    """Every setting of the algorithm."""
    started: float
    """When, in seconds since 1970."""
    status: str
    """`running`, `finished`, `interrupted`, or `stopped`: it ended without a summary, as a killed one does."""
    summary: Mapping[str, Any] | None
    """What it says of its end, if it has ended. One that was resumed since has not."""

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One row an iteration, read when they are asked for."""
        return read_metrics(self.path)

    @cached_property
    def last(self) -> Mapping[str, Any]:
        """The last row of metrics, found from the end of the file; empty if there is none."""
        return last_row(self.path)

    @property
    def timesteps(self) -> int:
        """Steps of environments so far."""
        return int(number(self.last, "time/total_timesteps") or 0)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last hundred episodes, if one has ended."""
        if self.summary is None:
            return number(self.last, "rollout/ep_rew_mean")
        return number(self.summary, "mean_return")


def find_runs(paths: Iterable[str | Path]) -> list[RunFiles]:
    """Return the runs that are meant by some paths, each once: a path is a run, or a folder that holds runs."""
    found: dict[Path, Path] = {}
    for path in paths:
        for folder in folders_of(path):
            found.setdefault(folder.resolve(), folder)
    return [read_run(folder) for folder in found.values()]


def folders_of(path: str | Path) -> list[Path]:
    """Return the folders of the runs that a path means, having said if there are none."""
    path = Path(path)
    if not path.exists():
        raise ConfigError(f"there is no run {str(path)!r}.{_guess(path)} Give folders of runs; `raceway list --runs`.")
    if not path.is_dir():
        raise ConfigError(f"{str(path)!r} is a file. Give the folder of the run: {str(path.parent)!r}.")
    found = list(_walk(path))
    if not found:
        raise ConfigError(
            f"{str(path)!r} holds no run: no folder in it has config.json and metrics.jsonl. Give the folder of a run, "
            "or one that holds some."
        )
    return found


def read_run(path: str | Path) -> RunFiles:
    """Return what the folder of a run says."""
    path = Path(path)
    about = read_config(path)
    config = about["config"]
    running = is_running(path)
    summary = None if running else _read_summary(path)
    return RunFiles(
        path=path,
        algorithm=about["algorithm"],
        env=summary["env"] if summary else _env_id(config["env"]),
        seed=config["seed"],
        config=config,
        started=_when([about, *about["resumes"]][-1].get("started"), path / "config.json"),
        status="running" if running else _ending(summary),
        summary=summary,
    )


def is_running(path: str | Path) -> bool:
    """Whether a process is training in this folder now: as long as it lives, it holds the lock."""
    try:
        with open(open_own(Path(path) / "lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of when it is closed
    except BlockingIOError:
        return True
    except OSError:  # no such file
        return False
    return False


def _read_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary, unless it is of a first part: of a run that was resumed, and then killed."""
    if not (path / "summary.json").is_file():
        return None
    summary = read_json(path / "summary.json")
    problem = schema_mismatch(summary, {"env": str})
    if problem:
        raise ConfigError(f"{path / 'summary.json'} is corrupt: {problem}. Remove it.")
    steps, until = number(last_row(path), "time/total_timesteps") or 0, number(summary, "timesteps")
    return None if until is not None and steps > until else summary


def _ending(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "stopped"
    return "interrupted" if summary.get("stopped_by") in ENDED_EARLY else "finished"


def _walk(path: Path) -> Iterator[Path]:
    """Yield the folders of runs in a folder. What is in a run is not looked into: checkpoints are large."""
    for folder, names, files in os.walk(path):
        if {"config.json", "metrics.jsonl"} <= set(files):
            names.clear()
            yield Path(folder)
        names[:] = sorted(name for name in names if not name.startswith("."))


def _guess(path: Path) -> str:
    """Return a question for what was meant by a path that does not exist, by the names beside it."""
    while not path.parent.exists():
        path = path.parent
    close = difflib.get_close_matches(path.name, [one.name for one in path.parent.iterdir() if one.is_dir()], n=1)
    return f" Did you mean {str(path.with_name(close[0]))!r}?" if close else ""


def number(row: Mapping[str, Any], name: str) -> float | None:
    """Return a figure of a row of metrics or of a summary, if it has one: anything else is none."""
    value = row.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _env_id(name: str) -> str:
    """Return an environment's id, as a summary has it. Nothing that the name names is imported."""
    from raceway.envs.names import ALIASES, find

    name = ALIASES.get(name, name)
    if ":" in name or "/" in name:
        return name
    try:
        return find(name)
    except ConfigError:  # of a class, or registered by the user's own program
        return name


def _when(text: Any, path: Path) -> float:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return path.stat().st_mtime
