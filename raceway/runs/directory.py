"""A run is a folder: what was asked for, with which versions, and the figures of every iteration."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from raceway.errors import ConfigError

SCHEMA = 1


class RunDirectory:
    """The folder of a run. `metrics.jsonl` gets one line an iteration."""

    def __init__(self, path: str | Path | None, name: str) -> None:
        self.path = Path(path) if path is not None else _fresh(Path("runs"), name)
        if (self.path / "config.json").exists():
            raise ConfigError(f"there is a run in {self.path} already. Choose another --run-dir, or remove that one.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.metrics_path = self.path / "metrics.jsonl"
            self._metrics = self.metrics_path.open("w", encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"no run can be kept in {self.path}: {error}. Choose another --run-dir.") from error

    def describe(self, algorithm: str, config: Mapping[str, Any], **more: Any) -> None:
        """Write down what is run."""
        about = {
            "schema": SCHEMA,
            "algorithm": algorithm,
            "config": dict(config),
            "command": sys.argv,
            "versions": versions(),
            "git": git_state(),
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            **more,
        }
        self.write("config.json", about)

    def write(self, name: str, value: Any) -> Path:
        """Write a JSON file, aside first, so that it is there whole or not at all."""
        path = self.path / name
        aside = path.with_suffix(".new")
        aside.write_text(json.dumps(value, indent=2, default=_shown) + "\n", encoding="utf-8")
        os.replace(aside, path)
        return path

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Add a line of metrics."""
        self._metrics.write(json.dumps(metrics, default=_shown) + "\n")
        self._metrics.flush()

    def close(self) -> None:
        """Close the file of metrics."""
        self._metrics.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the lines of metrics of a run."""
    with (Path(path) / "metrics.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


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
