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
from typing import Any, BinaryIO, TextIO

from raceway.checkpoints.files import append, open_own, put, remove_file, sync
from raceway.errors import ConfigError
from raceway.runs.schema import METRICS, SCHEMA, read_config, read_metrics

__all__ = ["RunDirectory", "as_json", "git_state", "is_plain", "read_config", "read_metrics", "replace", "versions"]

_log = logging.getLogger(__name__)
_MOMENT = 0.05  # seconds
_TOLD = ("metrics.jsonl", "summary.json", "plan.svg", "returns.png")


class RunDirectory:
    """The folder of a run, which one process at a time may write to. `metrics.jsonl` gets one line an iteration."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path, self.metrics_path = path, path / "metrics.jsonl"
        self._failing = False
        self._lock = _locked(path)
        try:
            if new:
                _check_free(path)  # again: somebody may have begun and ended one since
            self._metrics = self._opened(os.O_TRUNC if new else 0)
        except BaseException:
            self._lock.close()
            raise

    def _opened(self, flags: int = 0) -> BinaryIO:
        """Open the file of metrics for whole lines, which go to the system at once."""
        return open(open_own(self.metrics_path, os.O_RDWR | os.O_CREAT | flags), "r+b", buffering=0)

    @classmethod
    def new(cls, path: str | Path | None, name: str) -> RunDirectory:
        """Make the folder of a new run."""
        made = Path(path) if path is not None else _fresh(Path("runs"), name)
        _check_free(made)
        try:
            made.mkdir(parents=True, exist_ok=True)
            return cls(made, new=True)
        except OSError as error:
            raise ConfigError(f"no run can be kept in {made}: {error}. Choose another --run-dir.") from error

    @classmethod
    def again(cls, path: str | Path) -> RunDirectory:
        """Open the folder of a run that goes on."""
        try:
            return cls(Path(path), new=False)
        except OSError as error:
            raise ConfigError(f"the run in {path} cannot go on there: {error}. Mend that, or copy the run.") from error

    @classmethod
    def discard(cls, path: str | Path, algorithm: str, env: str) -> None:
        """Let a run that was over before its first checkpoint be begun anew in its folder, without what it told."""
        folder = Path(path)
        if (folder / "config.json").exists():
            about = read_config(folder)
            there = about["algorithm"], about["env"]["name"]
            if there != (algorithm, env):
                raise ConfigError(
                    f"the run in {folder} is of {' on '.join(there)}, not of {algorithm} on {env}. Choose another "
                    "--run-dir."
                )
            made = cls.again(folder)
            _log.warning("the run in %s was over before its first checkpoint: it is begun anew", folder)
            for old in (*folder.glob("events.out.tfevents.*"), *(folder / name for name in _TOLD)):
                remove_file(old)
            (folder / "config.json").unlink()  # last: as long as it is there, it can be tried again
            made.close()

    def rewind(self, iterations: int) -> None:
        """Remove what was told of later iterations."""
        rows = [row for row in read_metrics(self.path) if row["time/iterations"] <= iterations]
        try:
            replace(self.metrics_path, "".join(json.dumps(row) + "\n" for row in rows))
            self._metrics.close()
            self._metrics = self._opened()
        except OSError as error:
            raise ConfigError(
                f"{self.metrics_path} cannot be written anew: {error}. Make room, and try again."
            ) from error

    def describe(self, algorithm: str, config: Mapping[str, Any], **more: Any) -> None:
        """Write down what is run."""
        about = {"schema": SCHEMA, "metrics_schema": METRICS, "algorithm": algorithm, "config": dict(config), **more}
        self.write("config.json", {**about, **_circumstances()})

    def describe_again(self, config: Mapping[str, Any], steps: int, **more: Any) -> None:
        """Add to what was written down that it is run again, after so many steps, and with what that is different.

        An environment or network that is another than before was given as a function, and has to be again.
        """
        about = read_config(self.path)
        now = json.loads(as_json(dict(config)))
        changed = {name: value for name, value in now.items() if about["config"].get(name) != value}
        changed.pop("run_dir", None)  # folders can be moved
        again = {"steps": steps, "changed": changed, **_circumstances()}
        about["importable"] |= {name: False for name in ("env", "network") if name in changed}
        about["env"]["name"] = changed.get("env", about["env"]["name"])
        about |= {"config": about["config"] | changed, "resumes": [*about["resumes"], again], "metrics_schema": METRICS}
        self.write("config.json", {**about, **more})

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
            append(self._metrics, json.dumps(metrics, default=_shown).encode() + b"\n")
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


def _check_free(folder: Path) -> None:
    if (folder / "config.json").exists():
        raise ConfigError(
            f"there is a run in {folder} already. Choose another --run-dir, or go on with it: raceway resume {folder}"
        )
    metrics = folder / "metrics.jsonl"
    if metrics.is_file() and not metrics.is_symlink() and metrics.stat().st_size:
        raise ConfigError(f"{metrics} is there already, and of no run that is known. Choose another --run-dir.")


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
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    file = open(open_own(folder / "lock", flags), "a+", encoding="utf-8")  # noqa: SIM115 - it stays open
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
