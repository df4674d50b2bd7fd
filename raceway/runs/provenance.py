"""Where a run comes from: its command, the versions of the software, and the state of the user's repository."""

from __future__ import annotations

import platform
import subprocess
import sys
import time
from importlib import metadata
from typing import Any


def provenance() -> dict[str, Any]:
    """Return the command, versions, git state and start time for config.json."""
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    return {"command": sys.argv, "versions": versions(), "git": git_state(), "started": started}


def versions() -> dict[str, str]:
    """Return the versions of the software that results depend on."""
    installed = {"python": platform.python_version(), "system": platform.platform()}
    for name in ("raceway", "torch", "numpy", "gymnasium", "mujoco", "ray"):
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def git_state() -> dict[str, Any] | None:
    """Return the git commit of the current directory, and whether tracked files have changed since."""
    try:
        commit = _git("rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git("status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, timeout=5)
    return done.stdout.strip()
