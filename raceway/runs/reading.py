"""Runs that are over, or still going on: finding their folders, and reading what is in them."""

from __future__ import annotations

import difflib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from raceway.errors import ConfigError
from raceway.runs.directory import SCHEMA

ENDED_EARLY = ("interrupt", "terminated")
"""What a summary's `stopped_by` says of a run that somebody ended."""
_TAIL = 1 << 16  # bytes in which the last line of metrics is looked for first


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
        """One row an iteration, read when they are asked for. A last line that is torn is left out."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines()
        rows = [_row(line) for line in lines]
        if rows and rows[-1] is None:  # killed while it was written
            rows.pop()
        if None in rows:
            place = rows.index(None)
            raise ConfigError(f"line {place + 1} of {path} is no row of metrics: {lines[place][:60]!r}. Remove it.")
        return rows  # type: ignore[return-value]

    @cached_property
    def last(self) -> Mapping[str, Any]:
        """The last row of metrics, found from the end of the file; empty if there is none."""
        return _last_row(self.path / "metrics.jsonl")

    @property
    def timesteps(self) -> int:
        """Steps of environments so far."""
        return int(self.last.get("time/total_timesteps", 0))

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last hundred episodes, if one has ended."""
        return self.last.get("rollout/ep_rew_mean") if self.summary is None else self.summary.get("mean_return")


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
    about = _read_json(path / "config.json")
    try:
        schema, algorithm, config = about.get("schema", SCHEMA), about["algorithm"], about["config"]
        seed, env = config["seed"], config["env"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path / 'config.json'} is not of a run: {error!r} is missing. Remove that folder."
        ) from error
    if schema > SCHEMA:
        raise ConfigError(f"{path} was written by a newer Raceway (schema {schema}, not {SCHEMA}). Update Raceway.")
    running = is_running(path)
    summary = None if running else _read_summary(path)
    return RunFiles(
        path=path,
        algorithm=algorithm,
        env=summary["env"] if summary else _env_id(str(env)),
        seed=seed,
        config=config,
        started=_when([about, *about.get("resumes", ())][-1].get("started"), path / "config.json"),
        status="running" if running else _ending(summary),
        summary=summary,
    )


def is_running(path: str | Path) -> bool:
    """Whether a process is training in this folder now: as long as it lives, it holds the lock."""
    try:
        with (Path(path) / "lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go of when it is closed
    except BlockingIOError:
        return True
    except OSError:  # no such file
        return False
    return False


def _read_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary, unless it is of a first part: of a run that was resumed, and then killed."""
    if not (path / "summary.json").exists():
        return None
    summary = _read_json(path / "summary.json")
    steps = _last_row(path / "metrics.jsonl").get("time/total_timesteps", 0)
    return None if steps > summary.get("timesteps", steps) else summary


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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Mend it, or remove the folder of that run.") from error


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _last_row(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        end, size = file.seek(0, os.SEEK_END), _TAIL
        while True:
            start = max(0, end - size)
            file.seek(start)
            lines = file.read(end - start).splitlines()
            whole = lines if start == 0 else lines[1:]  # the first may have begun before
            found = next((row for line in reversed(whole) if (row := _row(line)) is not None), None)
            if found is not None or start == 0:
                return found or {}
            size *= 4


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


def _when(text: str | None, path: Path) -> float:
    try:
        return datetime.strptime(text or "", "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return path.stat().st_mtime
