"""The manifest of a checkpoint: sizes and hashes of its files, the names of its blocks, and a hash of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raceway.checkpoints.blocks import is_sha256
from raceway.checkpoints.files import read_file
from raceway.checks import check_int
from raceway.errors import CheckpointError, ConfigError
from raceway.file_schemas import Migrations, migrate

SCHEMA = 3
"""2: records are named by module and class, and the keys of states were renamed; see `migrations`."""
MIGRATIONS: Migrations = {}
MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions that decoding malformed data can raise."""


def encode_manifest(
    contents: Mapping[str, bytes], blocks: Mapping[str, Sequence[str]], state_sha256: str, about: Mapping[str, Any]
) -> bytes:
    """Return the manifest file for these files (their contents by name) and the block names of these arrays."""
    body = {
        "schema": SCHEMA,
        "about": _as_json_data(about),
        "state_sha256": state_sha256,
        "files": {name: {"size": len(content), "sha256": sha256_of(content)} for name, content in contents.items()},
        "blocks": blocks,
    }
    return json.dumps({"sha256": sha256_of(_canonical(body)), "body": body}, indent=1).encode()


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the body of a manifest, after checking it."""
    try:
        doc = json.loads(read_file(path))
        body, sha256 = doc["body"], doc["sha256"]
        if sha256_of(_canonical(body)) != sha256:
            raise CheckpointError(path, "it is corrupt: its contents do not match its hash")
        if body["schema"] > SCHEMA:
            raise CheckpointError(
                path, f"it has schema {body['schema']}, and this version of raceway reads up to {SCHEMA}. Upgrade it."
            )
        body = migrate(body, check_int("schema", body["schema"]), SCHEMA, MIGRATIONS)
        _check_body(body)
    except MALFORMED as error:
        raise CheckpointError(path, f"it is corrupt ({error!r})") from error
    return body


def _check_body(body: Any) -> None:
    """Refuse a manifest that lacks an entry, or whose hashes and block names are not SHA-256."""
    check_int("steps", body["about"]["steps"], 0)
    for file in body["files"].values():
        check_int("size", file["size"], 0)
    hashes = [body["state_sha256"], *(file["sha256"] for file in body["files"].values())]
    block_names = [name for names in body["blocks"].values() for name in names]
    if not all(map(is_sha256, [*hashes, *block_names])) or not all(body["blocks"].values()):
        raise ValueError("its files and blocks are not all named by a hash")


def _as_json_data(about: Mapping[str, Any]) -> Any:
    """Return the description of a checkpoint as it will be read back."""
    try:
        return json.loads(json.dumps(dict(about), default=lambda value: value.item()))
    except (AttributeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"the description of a checkpoint must be plain data: {error}. It is {dict(about)!r}."
        ) from error


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def sha256_of(content: bytes) -> str:
    """Return the SHA-256 of a file's contents, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
