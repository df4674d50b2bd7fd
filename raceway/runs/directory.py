"""A run is a folder: what was asked for, with which versions, and the figures of every iteration."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from raceway.errors import ConfigError
from raceway.runs.disk import put, sync

SCHEMA = 2
"""Of config.json."""
METRICS = 1
"""Of metrics.jsonl: what names in it mean."""

_log = logging.getLogger(__name__)
_MOMENT = 0.05  # seconds


class RunDirectory:
    """The folder of a run, which one process at a time may write to. `metrics.jsonl` gets one line an iteration."""

    def __init__(self, path: Path, mode: str) -> None:
        self.path, self.metrics_path = path, path / "metrics.jsonl"
        self._lock = _locked(path)
        self._metrics = self.metrics_path.open(mode, encoding="utf-8")
        self._failing = False

    @classmethod
    def new(cls, path: str | Path | None, name: str) -> RunDirectory:
        """Make the folder of a new run."""
        made = Path(path) if path is not None else _fresh(Path("runs"), name)
        if (made / "config.json").exists():
            raise ConfigError(
                f"there is a run in {made} already. Choose another --run-dir, or go on with it: raceway resume {made}"
            )
        try:
            made.mkdir(parents=True, exist_ok=True)
            return cls(made, "w")
        except OSError as error:
            raise ConfigError(f"no run can be kept in {made}: {error}. Choose another --run-dir.") from error

    @classmethod
    def again(cls, path: str | Path) -> RunDirectory:
        """Open the folder of a run that goes on."""
        return cls(Path(path), "a")

    @classmethod
    def discard(cls, path: str | Path) -> None:
        """Let a run that was over before its first checkpoint be begun anew in its folder."""
        config = Path(path) / "config.json"
        if config.exists():
            made = cls(Path(path), "a")
            config.unlink()
            made.close()

    def rewind(self, iterations: int) -> None:
        """Remove what was told of later iterations."""
        rows = [row for row in read_metrics(self.path) if row["time/iterations"] <= iterations]
        self._metrics.close()
        replace(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows))
        self._metrics = self.metrics_path.open("a", encoding="utf-8")

    def describe(self, algorithm: str, config: Mapping[str, Any], **more: Any) -> None:
        """Write down what is run."""
        about = {"schema": SCHEMA, "metrics_schema": METRICS, "algorithm": algorithm, "config": dict(config), **more}
        self.write("config.json", {**about, **_circumstances()})

    def describe_again(self, config: Mapping[str, Any], steps: int, **more: Any) -> None:
        """Add to what was written down that it is run again, after so many steps, and with what that is different."""
        about = read_config(self.path)
        now = json.loads(as_json(dict(config)))
        changed = {name: value for name, value in now.items() if about["config"].get(name) != value}
        changed.pop("run_dir", None)  # folders can be moved
        again = {"steps": steps, "changed": changed, **_circumstances()}
        resumes = [*about.get("resumes", ()), again]
        self.write("config.json", {**about, "config": about["config"] | changed, "resumes": resumes, **more})

    def write(self, name: str, value: Any) -> Path:
        """Write a JSON file, aside first, so that it is there whole or not at all."""
        path = self.path / name
        try:
            replace(path, json.dumps(value, indent=2, default=_shown) + "\n")
        except OSError as error:
            self._tell(error)
        return path

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add a line of metrics. If the disk is full, it is said once, and training goes on."""
        try:
            self._metrics.write(json.dumps(metrics, default=_shown) + "\n")
            self._metrics.flush()
            self._failing = False
        except OSError as error:
            self._tell(error)

    def _tell(self, error: OSError) -> None:
        if not self._failing:
            _log.warning("%s cannot be written to: %s. Training goes on without", self.path, error)
        self._failing = True

    def close(self) -> None:
        """Close the file of metrics, and let others have the folder."""
        try:
            self._metrics.close()
        except OSError as error:  # what could not be written before cannot be now
            self._tell(error)
        self._lock.close()


def _circumstances() -> dict[str, Any]:
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {"command": sys.argv, "versions": versions(), "git": git_state(), "started": started}


def replace(path: Path, text: str) -> None:
    """Write a file aside, bring it to the disk, and put it in the place of the one that is there."""
    aside = path.with_suffix(".new")
    put(aside, text.encode())
    os.replace(aside, path)
    sync(path.parent)


def as_json(value: Any) -> str:
    """Return a setting as it is written down."""
    return json.dumps(value, default=_shown)


def is_plain(value: Any) -> bool:
    """Whether a setting is the same after it was written down and read.

    >>> is_plain({"size": 3}), is_plain({"size": (3, 4)}), is_plain(len)
    (True, False, False)
    """
    return bool(json.loads(as_json(value)) == value)


def _locked(folder: Path) -> TextIO:
    """Return the lock of a folder. The system lets go of it when the process ends, however that happens."""
    file = (folder / "lock").open("a+", encoding="utf-8")
    for last in (False, True):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_MOMENT)  # somebody may have had it for an instant, to see whether the run is alive
            if not last:
                continue
            file.seek(0)
            whose = file.read().strip() or "another process"
            file.close()
            raise ConfigError(
                f"the run in {folder} is being trained by {whose}. Wait for it to end, or choose another --run-dir."
            ) from None
        except OSError as error:  # a file system without locks
            _log.warning("%s cannot be locked: %s. See to it that nothing else trains in it", folder, error)
            break
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of metrics of a run. The last may be torn, if it was killed while it wrote."""
    rows: list[dict[str, Any]] = []
    with (Path(path) / "metrics.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            rows.append(json.loads(line))
    return rows


def read_config(path: str | Path) -> dict[str, Any]:
    """Return what is known of a run, having checked that there is one."""
    folder, file = Path(path), Path(path) / "config.json"
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}. `raceway list --runs` shows the runs.")
    if not file.exists():
        inside = sorted(one.parent.name for one in folder.glob("*/config.json"))
        there = f" It holds the runs {', '.join(inside[:5])}: name one of them." if inside else ""
        raise ConfigError(f"{folder} is no run: it has no config.json.{there}")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        schema = found["schema"]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is corrupt ({error!r}). Without it nothing can be gone on with.") from error
    if schema > SCHEMA:
        raise ConfigError(
            f"{file} is of schema {schema}, and this version of raceway reads up to {SCHEMA}. Upgrade it."
        )
    return found


def versions() -> dict[str, str]:
    """Return the versions of what results depend on."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for name in ("raceway", "torch", "numpy", "gymnasium", "mujoco", "ray"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_state() -> dict[str, Any] | None:
    """Return the commit of the folder that the user is in, and whether files have changed since."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()


def _fresh(folder: Path, name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path, number = folder / f"{name}-{stamp}", 2
    while path.exists():
        path, number = folder / f"{name}-{stamp}-{number}", number + 1
    return path


def _shown(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else getattr(value, "__name__", repr(value))
