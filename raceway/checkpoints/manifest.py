"""The manifest of a checkpoint: what it says of the files, and that it is itself as it was written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raceway.checkpoints import files
from raceway.checkpoints.blocks import is_name
from raceway.checks import check_int
from raceway.errors import CheckpointError, ConfigError
from raceway.schema import Migrations, migrate

SCHEMA = 1
MIGRATIONS: Migrations = {}
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What comes of reading data that makes no sense."""


def file_of(
    contents: Mapping[str, bytes], blocks: Mapping[str, Sequence[str]], state_sha256: str, about: Mapping[str, Any]
) -> bytes:
    """Return the file that tells of these contents of files, and of these blocks of arrays."""
    body = {
        "schema": SCHEMA,
        "about": _plain(about),
        "state_sha256": state_sha256,
        "files": {name: {"size": len(text), "sha256": sha256_of(text)} for name, text in contents.items()},
        "blocks": blocks,
    }
    return json.dumps({"sha256": sha256_of(_canonical(body)), "body": body}, indent=1).encode()


def read(path: Path) -> dict[str, Any]:
    """Return what a manifest says, having been checked."""
    try:
        found = json.loads(files.read(path))
        body, told = found["body"], found["sha256"]
        if sha256_of(_canonical(body)) != told:
            raise CheckpointError(path, "it is corrupt: its hash is not what it says")
        if body["schema"] > SCHEMA:
            raise CheckpointError(
                path, f"it is of schema {body['schema']}, and this version of raceway reads up to {SCHEMA}. Upgrade it."
            )
        body = migrate(body, check_int("schema", body["schema"]), SCHEMA, MIGRATIONS)
        _check(body)
    except UNREADABLE as error:
        raise CheckpointError(path, f"it is corrupt ({error!r})") from error
    return body


def _check(body: Any) -> None:
    """Refuse a manifest that lacks something, or names what cannot be a block."""
    check_int("steps", body["about"]["steps"], 0)
    for one in body["files"].values():
        check_int("size", one["size"], 0)
    hashes = [body["state_sha256"], *(one["sha256"] for one in body["files"].values())]
    names = [name for parts in body["blocks"].values() for name in parts]
    if not all(map(is_name, [*hashes, *names])) or not all(body["blocks"].values()):
        raise ValueError("its files and blocks are not all named by a hash")


def _plain(about: Mapping[str, Any]) -> Any:
    """Return it as it will be read."""
    try:
        return json.loads(json.dumps(dict(about), default=lambda value: value.item()))
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"what is told of a checkpoint must be plain data: {error}. It is {dict(about)!r}."
        ) from error


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def sha256_of(content: bytes) -> str:
    """Return the hash of what a file holds."""
    return hashlib.sha256(content).hexdigest()
