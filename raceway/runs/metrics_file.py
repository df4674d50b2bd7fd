"""Reading metrics.jsonl, one row per iteration of a run, from a file that is not trusted."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from raceway.checkpoints.files import open_regular_file
from raceway.errors import ConfigError
from raceway.file_schemas import Document, Migrations, migrate, schema_mismatch
from raceway.runs.config_file import METRICS_SCHEMA, read_config

METRICS_MIGRATIONS: Migrations = {}
_TAIL_BYTES = 1 << 16  # where the last row is searched first
_log = logging.getLogger(__name__)


def read_metrics(path: str | Path) -> list[Document]:
    """Return the rows of metrics of a run. Invalid lines are skipped and logged, except a last one that is cut off."""
    file, schema = Path(path) / "metrics.jsonl", _metrics_schema(Path(path))
    rows, invalid, line = list[Document](), list[tuple[int, bytes]](), b""
    try:
        with open(open_regular_file(file), "rb") as lines:
            for number, line in enumerate(lines, 1):
                row = _parse_row(line, schema)
                if row is None:
                    invalid.append((number, line))
                else:
                    rows.append(row)
    except OSError as error:
        raise _unreadable(file, error) from error
    if invalid and invalid[-1][1] is line and not line.endswith(b"\n"):
        invalid.pop()
    if invalid:
        number, line = invalid[0]
        _log.warning(
            "%s has %d lines that are not rows of metrics, which are skipped. The first is line %d: %r",
            file, len(invalid), number, line[:60],
        )  # fmt: skip
    return rows


def last_row(path: str | Path) -> Document:
    """Return the last row of metrics, or an empty one. Only the end of the file is read where that suffices."""
    file, schema = Path(path) / "metrics.jsonl", _metrics_schema(Path(path))
    try:
        with open(open_regular_file(file), "rb") as content:
            end, size = content.seek(0, os.SEEK_END), _TAIL_BYTES
            while True:
                start = max(0, end - size)
                content.seek(start)
                lines = content.read(end - start).split(b"\n")
                complete = lines if start == 0 else lines[1:]  # the first one may start before
                row = next((row for line in reversed(complete) if (row := _parse_row(line, schema)) is not None), None)
                if row is not None or start == 0:
                    return row or {}
                size *= 4
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{file} cannot be read: {error}. Repair it, or remove the directory of that run.")


def _metrics_schema(directory: Path) -> int:
    return read_config(directory)["metrics_schema"] if (directory / "config.json").is_file() else METRICS_SCHEMA


def _parse_row(line: bytes, schema: int) -> Document | None:
    """Return the row in a line, migrated to the current schema, or None if the line is not a row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    row = migrate(row, schema, METRICS_SCHEMA, METRICS_MIGRATIONS)
    row.setdefault("returns", [])
    return row if schema_mismatch(row, {"time/iterations": int, "returns": list}) is None else None
