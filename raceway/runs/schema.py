"""What a run has written down of itself, read as if anybody could have written it: config.json and metrics.jsonl.

Both carry a number of their schema. What an older version wrote is brought up to date here, so that nobody else needs
to know how it was; what a newer one wrote is refused.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from raceway.checkpoints.files import open_own
from raceway.errors import ConfigError
from raceway.schema import Document, Migrations, migrate, schema_mismatch

SCHEMA = 2
"""Of config.json."""
METRICS = 1
"""Of metrics.jsonl: what names in it mean."""

_TAIL = 1 << 16  # bytes in which the last line of metrics is looked for first
_log = logging.getLogger(__name__)


def _with_places(about: Document) -> Document:
    """Make schema 2 of schema 1, which is from before checkpoints: it says nothing of a policy and its spaces."""
    config = about["config"]
    env = {"name": config["env"], "kwargs": config.get("env_kwargs", {}), "vector": config.get("vector", "auto")}
    importable = dict.fromkeys(("env", "network", "env_kwargs"), True)
    return {"metrics_schema": 1, "env": env, "importable": importable, **about}


CONFIGS: Migrations = {1: _with_places}
ROWS: Migrations = {}


_ALWAYS = {
    "algorithm": str,
    "config": {"env": str, "seed": int},
    "env": {"name": str, "kwargs": dict, "vector": str},
    "importable": {"env": bool, "network": bool, "env_kwargs": bool},
    "resumes": list,
}
_WITH_POLICY = {
    "config": {"network": str, "env_kwargs": dict},
    "policy": {
        "kind": str, "network": str, "hidden": list, "normalise": bool, "num_slots": int,
        "activation": (str, type(None)), "shared": bool,
    },
    "spaces": {"observation": dict, "action": dict},
}  # fmt: skip


def read_config(path: str | Path) -> Document:
    """Return what is known of a run, having checked that there is one, and brought it up to date.

    What it does not say of a `policy` and its `spaces`, nobody can: an older version made it.
    """
    folder, file = Path(path), Path(path) / "config.json"
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}. `raceway list --runs` shows the runs.")
    if not file.is_file():
        inside = sorted(one.parent.name for one in folder.glob("*/config.json"))
        there = f" It holds the runs {', '.join(inside[:5])}: name one of them." if inside else ""
        raise ConfigError(f"{folder} is no run: it has no config.json.{there}")
    about = read_json(file)
    schema = _schema(file, about, "schema", SCHEMA)
    problem = schema_mismatch(about, {"config": {"env": str}})
    if problem is None:
        about = {"resumes": [], **migrate(about, schema, SCHEMA, CONFIGS), "schema": SCHEMA}
        _schema(file, about, "metrics_schema", METRICS)
        problem = schema_mismatch(about, _ALWAYS) or (
            schema_mismatch(about, _WITH_POLICY) if has_policy(about) else None
        )
        problem = problem or next(
            (found for one in about["resumes"] if (found := schema_mismatch(one, {}, "resumes"))), None
        )
    if problem:
        raise ConfigError(f"{file} is corrupt: {problem}. Mend it, or train anew: nothing can be done with the run.")
    return about


def has_policy(about: Document) -> bool:
    """Whether a run says what its policy is. Those from before checkpoints do not."""
    return about.get("policy") is not None and about.get("spaces") is not None


def _schema(file: Path, about: Document, name: str, newest: int) -> int:
    """Return the number of a schema, having seen that this version knows it."""
    schema = about.get(name)
    if type(schema) is not int or schema < 1:
        raise ConfigError(f"{file} is corrupt: its {name} is {schema!r}. Mend it, or train anew.")
    if schema > newest:
        raise ConfigError(
            f"{file} is of {name} {schema}, and this version of raceway reads up to {newest}. Upgrade raceway."
        )
    return schema


def read_json(path: Path) -> Document:
    """Return the object that a file holds."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Mend it, or remove the folder of that run.") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} is corrupt: it holds a {type(found).__name__}, not an object. Mend it.")
    return found


def read_metrics(path: str | Path) -> list[Document]:
    """Return the rows of metrics of a run. Lines that are none are told of, but for a last one that is torn."""
    file, schema = Path(path) / "metrics.jsonl", _rows_schema(Path(path))
    rows, bad, line = list[Document](), list[tuple[int, bytes]](), b""
    try:
        with open(open_own(file), "rb") as lines:
            for number, line in enumerate(lines, 1):
                row = _row(line, schema)
                if row is None:
                    bad.append((number, line))
                else:
                    rows.append(row)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}. Mend it, or remove the folder of that run.") from error
    if bad and bad[-1][1] is line and not line.endswith(b"\n"):
        bad.pop()
    if bad:
        number, line = bad[0]
        _log.warning(
            "%s has %d lines that are no rows of metrics, which are left out. The first is line %d: %r",
            file, len(bad), number, line[:60],
        )  # fmt: skip
    return rows


def last_row(path: str | Path) -> Document:
    """Return the last row of metrics, found from the end of the file; an empty one if there is none."""
    file, schema = Path(path) / "metrics.jsonl", _rows_schema(Path(path))
    try:
        with open(open_own(file), "rb") as content:
            end, size = content.seek(0, os.SEEK_END), _TAIL
            while True:
                start = max(0, end - size)
                content.seek(start)
                lines = content.read(end - start).split(b"\n")
                whole = lines if start == 0 else lines[1:]  # the first may have begun before
                found = next((row for line in reversed(whole) if (row := _row(line, schema)) is not None), None)
                if found is not None or start == 0:
                    return found or {}
                size *= 4
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}. Mend it, or remove the folder of that run.") from error


def _rows_schema(folder: Path) -> int:
    return read_config(folder)["metrics_schema"] if (folder / "config.json").is_file() else METRICS


def _row(line: bytes, schema: int) -> Document | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict):
        return None
    row = migrate(row, schema, METRICS, ROWS)
    row.setdefault("returns", [])
    return row if schema_mismatch(row, {"time/iterations": int, "returns": list}) is None else None
