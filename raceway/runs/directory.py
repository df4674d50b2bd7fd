"""The directory of a run: its configuration and versions, and its rows of metrics."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from raceway.checkpoints.files import (
    append,
    open_regular_file,
    remove_file,
    remove_tree,
    sync_directory,
    write_file,
)
from raceway.errors import ConfigError
from raceway.runs.config_file import CONFIG_SCHEMA, METRICS_SCHEMA, read_config
from raceway.runs.metrics_file import metrics_schema, read_metrics, replace_last_row, truncate_rows
from raceway.runs.provenance import provenance

_log = logging.getLogger(__name__)
_LOCK_RETRY_SECONDS = 0.05
_OUTPUT_FILES = ("metrics.jsonl", "summary.json", "error.txt", "plan.svg", "returns.png")
_EVENT_FILES = "events.out.tfevents.*"


class RunDirectory:
    """The directory of a run, open for writing in one process at a time."""

    def __init__(self, path: Path, *, new: bool) -> None:
        self.path, self.metrics_path = path, path / "metrics.jsonl"
        self._failing = False
        self._entries_before = set(os.listdir(path))
        self._created: list[Path] = []
        self._lock = _lock(path)
        try:
            if new:
                _check_free(path)  # again: another run may have started and ended since
            self._metrics = self._open_metrics(os.O_TRUNC if new else 0)
        except BaseException:
            self._lock.close()
            raise

    def _open_metrics(self, flags: int = 0) -> BinaryIO:
        """Open metrics.jsonl unbuffered: each line goes to the operating system at once."""
        return open(open_regular_file(self.metrics_path, os.O_RDWR | os.O_CREAT | flags), "r+b", buffering=0)

    @classmethod
    def new(cls, path: str | Path | None, name: str) -> RunDirectory:
        """Create the directory of a new run."""
        directory = Path(path) if path is not None else _unused_path(Path("runs"), name)
        _check_free(directory)
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        try:
            directory.mkdir(parents=True, exist_ok=True)
            run = cls(directory, new=True)
            run._created = missing
            return run
        except OSError as error:
            raise ConfigError(f"a run cannot be saved in {directory}: {error}. Choose another --run-dir.") from error

    @classmethod
    def reopen(cls, path: str | Path) -> RunDirectory:
        """Open the directory of a run that is resumed."""
        try:
            return cls(Path(path), new=False)
        except OSError as error:
            raise ConfigError(f"the run in {path} cannot be resumed: {error}. Fix that, or copy the run.") from error

    @classmethod
    def discard(cls, path: str | Path, algorithm: str, env: str) -> None:
        """Remove the files of a run that ended before its first checkpoint, so that it can start again there."""
        directory = Path(path)
        if (directory / "config.json").exists():
            about = read_config(directory)
            existing = about["algorithm"], about["env"]["name"]
            if existing != (algorithm, env):
                raise ConfigError(
                    f"the run in {directory} is {' on '.join(existing)}, not {algorithm} on {env}. Choose another "
                    "--run-dir."
                )
            run = cls.reopen(directory)
            _log.warning(
                "the run in %s ended before its first checkpoint: it starts again from the beginning", directory
            )
            for file in (*directory.glob(_EVENT_FILES), *(directory / name for name in _OUTPUT_FILES)):
                remove_file(file)
            (directory / "config.json").unlink()  # last: while it exists, discarding can be retried
            run.close()

    def truncate_metrics(self, iterations: int) -> None:
        """Remove the metrics of all iterations after this one. Only the end of the file is read."""
        try:
            schema = metrics_schema(self.path)
            if schema != METRICS_SCHEMA:
                self._migrate_metrics()
            truncate_rows(self._metrics, iterations, METRICS_SCHEMA)
        except OSError as error:
            raise ConfigError(
                f"{self.metrics_path} cannot be rewritten: {error}. Free some disk space, and try again."
            ) from error

    def _migrate_metrics(self) -> None:
        """Rewrite the metrics of an older version in the current schema."""
        replace_file(self.metrics_path, "".join(json.dumps(row) + "\n" for row in read_metrics(self.path)))
        self._metrics.close()
        self._metrics = self._open_metrics()

    def replace_last_row(self, metrics: Mapping[str, Any]) -> None:
        """Write the last row of metrics again, with more in it. An OSError is logged once, and the row stays."""
        try:
            replace_last_row(self._metrics, _line(metrics), METRICS_SCHEMA)
            self._failing = False
        except OSError as error:
            self._log_failure(error)

    def describe(self, algorithm: str, config: Mapping[str, Any], **more: Any) -> None:
        """Write config.json, the description of the run."""
        schemas = {"schema": CONFIG_SCHEMA, "metrics_schema": METRICS_SCHEMA}
        about = {**schemas, "algorithm": algorithm, "config": dict(config), **more}
        self.write("config.json", {**about, **provenance()})

    def describe_resume(self, config: Mapping[str, Any], steps: int, **more: Any) -> None:
        """Record in config.json that the run was resumed after this many steps, and which settings changed.

        An environment or network that changed was passed as a function, so the next resume needs it again.
        """
        about = read_config(self.path)
        current = json.loads(as_json(dict(config)))
        changed = {name: value for name, value in current.items() if about["config"].get(name) != value}
        changed.pop("run_dir", None)  # directories can be moved
        resume = {"steps": steps, "changed": changed, **provenance()}
        about["importable"] |= {name: False for name in ("env", "network") if name in changed}
        about["env"]["name"] = changed.get("env", about["env"]["name"])
        about |= {"config": about["config"] | changed, "resumes": [*about["resumes"], resume]}
        about["metrics_schema"] = METRICS_SCHEMA
        self.write("config.json", {**about, **more})

    def write(self, name: str, value: Any) -> Path:
        """Write a JSON file atomically. An OSError is logged once."""
        path = self.path / name
        try:
            replace_file(path, json.dumps(value, indent=2, default=_json_default) + "\n")
        except OSError as error:
            self._log_failure(error)
        return path

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Append a row of metrics. An OSError, such as a full disk, is logged once, and training continues."""
        try:
            append(self._metrics, _line(metrics))
            self._failing = False
        except OSError as error:
            self._log_failure(error)

    def write_error(self, text: str) -> None:
        """Write error.txt: the traceback of the error that ended the run."""
        try:
            replace_file(self.path / "error.txt", text)
        except OSError as error:
            self._log_failure(error)

    def remove_ending(self) -> None:
        """Remove the files that say how an earlier part of the run ended."""
        for name in ("summary.json", "error.txt"):
            remove_file(self.path / name)

    def remove(self) -> None:
        """Close the directory of a new run in which nothing was trained, and remove what the run created."""
        self._close_metrics()
        events = [path.name for path in self.path.glob(_EVENT_FILES)]
        for name in ("checkpoints", *events, *_OUTPUT_FILES, "config.json", "lock"):
            if name not in self._entries_before:
                remove_tree(self.path / name)
        with contextlib.suppress(OSError):  # other files are in it
            for directory in self._created:
                directory.rmdir()
        self._lock.close()  # last: another run may start here from then on

    def _log_failure(self, error: OSError) -> None:
        if not self._failing:
            _log.warning("%s cannot be written to: %s. Training continues without it", self.path, error)
        self._failing = True

    def close(self) -> None:
        """Close metrics.jsonl and release the lock."""
        self._close_metrics()
        self._lock.close()

    def _close_metrics(self) -> None:
        try:
            self._metrics.close()
        except OSError as error:  # a write that failed before fails again
            self._log_failure(error)


def _check_free(directory: Path) -> None:
    if (directory / "config.json").exists():
        raise ConfigError(
            f"there is already a run in {directory}. Choose another --run-dir, or resume it: raceway resume {directory}"
        )
    metrics = directory / "metrics.jsonl"
    if metrics.is_file() and not metrics.is_symlink() and metrics.stat().st_size:
        raise ConfigError(f"{metrics} exists already and belongs to no known run. Choose another --run-dir.")


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: write a temporary file, flush it to the disk, and rename it."""
    temporary = path.with_suffix(".new")
    write_file(temporary, text.encode())
    os.replace(temporary, path)
    sync_directory(path.parent)


def _line(metrics: Mapping[str, Any]) -> bytes:
    return as_json(metrics).encode() + b"\n"


def as_json(value: Any) -> str:
    """Return a setting as config.json holds it."""
    return json.dumps(value, default=_json_default)


def survives_json(value: Any) -> bool:
    """Whether a setting is unchanged after being written to config.json and read back.

    >>> survives_json({"size": 3}), survives_json({"size": (3, 4)}), survives_json(len)
    (True, False, False)
    """
    return bool(json.loads(as_json(value)) == value)


def _lock(directory: Path) -> TextIO:
    """Lock a directory and return the lock file. The system releases it when the process ends, even by a kill."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
    file = open(open_regular_file(directory / "lock", flags), "a+", encoding="utf-8")  # noqa: SIM115 - it stays open
    for last_attempt in (False, True):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(_LOCK_RETRY_SECONDS)  # `is_running` holds it for an instant
            if not last_attempt:
                continue
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            raise ConfigError(
                f"the run in {directory} is being trained by {owner}. Wait for it to end, or choose another --run-dir."
            ) from None
        except OSError as error:  # a file system without locks
            _log.warning("%s cannot be locked: %s. Make sure that no other process trains in it", directory, error)
            break
    if not _is_at(file, directory / "lock"):  # a run that failed to start removed it meanwhile
        file.close()
        return _lock(directory)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}\n")
    file.flush()
    return file


def _is_at(file: TextIO, path: Path) -> bool:
    """Whether an open file is the one that has this path now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _unused_path(parent: Path, name: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path, number = parent / f"{name}-{stamp}", 2
    while path.exists():
        path, number = parent / f"{name}-{stamp}-{number}", number + 1
    return path


def _json_default(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return value.tolist() if hasattr(value, "tolist") else getattr(value, "__name__", repr(value))
