"""Finding run directories and reading them, whether the run has ended or not."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from raceway.checkpoints.files import open_regular_file
from raceway.checks import nearest_name
from raceway.errors import ConfigError
from raceway.file_schemas import schema_mismatch
from raceway.runs.config_file import algorithm_label, read_config, read_json
from raceway.runs.metrics_file import last_row, read_metrics
from raceway.settings.progress import TIMESTEPS, Progress, progress_in

ENDED_EARLY = ("interrupt", "terminated")
"""Values of a summary's `stopped_by` for a run that a signal ended."""


@dataclass(frozen=True)
class RunFiles:
    """The contents of a run directory."""

    path: Path
    algorithm: str
    env: str
    seed: int
    config: Mapping[str, Any]
    """Every setting of the algorithm."""
    started: float
    """Time of the last start or resume, in seconds since 1970."""
    status: str
    """`running`, `finished`, `interrupted` by a signal, `crashed` by an error, or `killed`: it has no summary."""
    summary: Mapping[str, Any] | None
    """Its summary if it has ended, and has not been resumed since."""

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics, read on first access."""
        return read_metrics(self.path)

    @cached_property
    def last(self) -> Mapping[str, Any]:
        """The last row of metrics, read from the end of the file; empty if there is none."""
        return last_row(self.path)

    @property
    def progress(self) -> Progress:
        """What the run counts."""
        return progress_in(self.last)

    @property
    def timesteps(self) -> int:
        """Environment steps so far."""
        return TIMESTEPS.of(self.last)

    @property
    def steps(self) -> int:
        """Its progress: environment steps so far, or updates."""
        return self.progress.of(self.last)

    @property
    def mean_return(self) -> float | None:
        """Mean return of the last 100 episodes, or None if no episode has ended."""
        if self.summary is None:
            return numeric_value(self.last, "rollout/ep_rew_mean")
        return numeric_value(self.summary, "mean_return")

    @property
    def error(self) -> str | None:
        """The error that ended the run; its traceback is in error.txt."""
        return str(self.summary.get("error")) if self.summary is not None and self.status == "crashed" else None


def find_runs(paths: Iterable[str | Path]) -> list[RunFiles]:
    """Return the runs at these paths, each once. A path is a run directory, or a directory that contains some."""
    directories: dict[Path, Path] = {}
    for path in paths:
        for directory in run_directories(path):
            directories.setdefault(directory.resolve(), directory)
    return [read_run(directory) for directory in directories.values()]


def run_directories(path: str | Path) -> list[Path]:
    """Return the run directories at or below a path. No run there is an error."""
    path = Path(path)
    if not path.exists():
        raise ConfigError(
            f"there is no run {str(path)!r}.{_suggestion(path)} Pass run directories; `raceway list --runs` lists them."
        )
    if not path.is_dir():
        raise ConfigError(f"{str(path)!r} is a file. Pass the run directory: {str(path.parent)!r}.")
    directories = list(_walk_runs(path))
    if not directories:
        raise ConfigError(
            f"{str(path)!r} contains no run: no directory in it has config.json and metrics.jsonl. Pass a run "
            "directory, or one that contains some."
        )
    return directories


def read_run(path: str | Path) -> RunFiles:
    """Read a run directory."""
    path = Path(path)
    about = read_config(path)
    config = about["config"]
    running = is_running(path)
    summary = None if running else _read_summary(path)
    return RunFiles(
        path=path,
        algorithm=algorithm_label(about),
        env=summary["env"] if summary else _env_id(config["env"]),
        seed=config["seed"],
        config=config if "policies" not in about else {**config, **_policy_settings(about["policies"])},
        started=_start_time([about, *about["resumes"]][-1].get("started"), path / "config.json"),
        status="running" if running else _ending(summary),
        summary=summary,
    )


def _policy_settings(policies: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of policies by name, with the policy's name before it unless all have the same value.

    >>> pair, single = {"agents": ["a", "b"], "algorithm": "ppo"}, {"agents": ["c"], "algorithm": "ppo"}
    >>> _policy_settings({"pair": {**pair, "config": {"lr": 1}}, "single": {**single, "config": {"lr": 2}}})
    {'pair.lr': 1, 'single.lr': 2, 'pair.agents': 'a,b', 'single.agents': 'c'}
    """
    settings: dict[str, Any] = {}
    for name in dict.fromkeys(name for policy in policies.values() for name in policy["config"]):
        values = {policy: table["config"].get(name) for policy, table in policies.items()}
        same = len({str(value) for value in values.values()}) == 1
        settings |= {name: next(iter(values.values()))} if same else {f"{p}.{name}": v for p, v in values.items()}
    return settings | {f"{policy}.agents": ",".join(table["agents"]) for policy, table in policies.items()}


def is_running(path: str | Path) -> bool:
    """Whether a process is training in this directory now: it holds the lock while it lives."""
    try:
        with open(open_regular_file(Path(path) / "lock"), "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released on close
    except BlockingIOError:
        return True
    except OSError:  # no such file
        return False
    return False


def _read_summary(path: Path) -> dict[str, Any] | None:
    """Return the summary, unless it is outdated: the run was resumed after it was written, and then killed."""
    if not (path / "summary.json").is_file():
        return None
    summary = read_json(path / "summary.json")
    problem = schema_mismatch(summary, {"env": str})
    if problem:
        raise ConfigError(f"{path / 'summary.json'} is corrupt: {problem}. Remove it.")
    row = last_row(path)
    progress = progress_in(row)
    summary_steps = numeric_value(summary, progress.setting.removeprefix("total_"))
    return None if summary_steps is not None and progress.of(row) > summary_steps else summary


def _ending(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "killed"
    stopped_by = summary.get("stopped_by")
    return "crashed" if stopped_by == "error" else "interrupted" if stopped_by in ENDED_EARLY else "finished"


def _walk_runs(path: Path) -> Iterator[Path]:
    """Yield the run directories below a path, without descending into a run: checkpoints are large."""
    for directory, names, files in os.walk(path):
        if {"config.json", "metrics.jsonl"} <= set(files):
            names.clear()
            yield Path(directory)
        names[:] = sorted(name for name in names if not name.startswith("."))


def _suggestion(path: Path) -> str:
    """Return a "Did you mean ...?" for a path that does not exist, from the names of its siblings."""
    while not path.parent.exists():
        path = path.parent
    siblings = [sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()]
    near = nearest_name(path.name, siblings)
    return f" Did you mean {str(path.with_name(near))!r}?" if near else ""


def numeric_value(row: Mapping[str, Any], name: str) -> float | None:
    """Return a number from a row of metrics or a summary, or None if it has no number of that name."""
    value = row.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _env_id(name: str) -> str:
    """Return an environment's id in the form that summaries use, without importing its module."""
    from raceway.envs.names import ALIASES, resolve_env_id

    name = ALIASES.get(name, name)
    if ":" in name or "/" in name:
        return name
    try:
        return resolve_env_id(name)
    except ConfigError:  # the name of a class, or an id that the user's program registers
        return name


def _start_time(text: Any, path: Path) -> float:
    try:
        return datetime.strptime(str(text), "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except ValueError:
        return path.stat().st_mtime
