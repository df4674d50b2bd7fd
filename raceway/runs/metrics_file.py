"""Reading and truncating metrics.jsonl, the rows of metrics of a run: a file that is not trusted."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from raceway.checkpoints.files import open_regular_file
from raceway.errors import ConfigError
from raceway.file_schemas import Document, Migrations, migrate, schema_mismatch
from raceway.runs.config_file import METRICS_SCHEMA, read_config

METRICS_MIGRATIONS: Migrations = {}
_BLOCK_BYTES = 1 << 16  # read at a time, from the end
_log = logging.getLogger(__name__)


def read_metrics(path: str | Path) -> list[Document]:
    """Return the rows of metrics of a run. Invalid lines are skipped and logged, except a last one that is cut off."""
    file, schema = Path(path) / "metrics.jsonl", metrics_schema(Path(path))
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
    """Return the last row of metrics, or an empty one. Only the end of the file is read."""
    file, schema = Path(path) / "metrics.jsonl", metrics_schema(Path(path))
    try:
        with open(open_regular_file(file), "rb") as content:
            return next((row for _, _, row in _rows_backwards(content, schema)), {})
    except OSError as error:
        raise _unreadable(file, error) from error


def truncate_rows(file: BinaryIO, iterations: int, schema: int) -> None:
    """Remove all after the last row up to this iteration, in place. Only the removed end of the file is read."""
    kept = ((end, row) for _, end, row in _rows_backwards(file, schema) if row["time/iterations"] <= iterations)
    end, _ = next(kept, (0, None))
    os.ftruncate(file.fileno(), end)
    if end:
        file.seek(end - 1)
        if file.read(1) != b"\n":  # the last line was cut off just there
            file.write(b"\n")
    os.fsync(file.fileno())


def replace_last_row(file: BinaryIO, line: bytes, schema: int) -> None:
    """Write another line in place of the last row of an unbuffered file. If that fails, the row stays.

    The line is written over the row, which can be written there again even if the disk is full.
    """
    start, end, _ = next(_rows_backwards(file, schema), (0, 0, None))
    file.seek(start)
    replaced = file.read(end - start)
    try:
        _overwrite(file, start, line)
    except BaseException:
        _overwrite(file, start, replaced)
        raise


def _overwrite(file: BinaryIO, start: int, content: bytes) -> None:
    """Write to an unbuffered file from an offset on, and end the file there."""
    file.seek(start)
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[file.write(remaining) :]
    os.ftruncate(file.fileno(), start + len(content))


def _rows_backwards(file: BinaryIO, schema: int) -> Iterator[tuple[int, int, Document]]:
    """Yield the rows of a file from the last to the first, each with the offsets of its line's start and end."""
    size = file.seek(0, os.SEEK_END)
    for start, line in _lines_backwards(file, size):
        row = _parse_row(line, schema)
        if row is not None:
            yield start, min(start + len(line) + 1, size), row


def _lines_backwards(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file from the last to the first, each with the offset of its start."""
    position, rest, block_bytes = size, b"", _BLOCK_BYTES
    while position > 0:
        start = max(0, position - block_bytes)
        file.seek(start)
        block = file.read(position - start) + rest
        lines = block.split(b"\n")
        offset = start + len(block)
        for line in reversed(lines if start == 0 else lines[1:]):  # the first one may start before the block
            offset -= len(line)
            yield offset, line
            offset -= 1  # the line break before it
        position, rest = start, lines[0]
        if len(lines) == 1:  # a line longer than the block
            block_bytes *= 4


def _unreadable(file: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{file} cannot be read: {error}. Repair it, or remove the directory of that run.")


def metrics_schema(directory: Path) -> int:
    """Return the schema number of a run's metrics."""
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
