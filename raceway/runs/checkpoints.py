"""Checkpoints: folders of plain data that are there whole or not at all.

    checkpoints/
      000000204800/             named by steps of environments
        manifest.json           sizes and hashes of the files beside it, and of the blocks that they need
        state.json              the state, but for its arrays
        state.safetensors       arrays, by where they stand in the state
        policy.safetensors      the weights of the policy, by their names
      blocks/<sha256>.npy       parts of long arrays, such as replay, which checkpoints share

A long array is cut into blocks of rows that are named by what they hold, so only those that have changed since the last
checkpoint are written. Everything is written aside, brought to the disk, and then renamed.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from raceway.errors import CheckpointError
from raceway.runs.coding import Array, Arrays, decode, digest, encode, hash_of

SCHEMA = 1
BLOCK = 4 << 20
"""Bytes of a block, about."""
POLICY = "state/learner/policy/"
"""Where the weights of the policy stand in a state."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What is said of it, having been checked."""
        path = self.path / "manifest.json"
        try:
            found = json.loads(_read(path))
            body, told = found["body"], found["sha256"]
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(path, f"it is corrupt ({type(error).__name__})") from error
        if _hash(_canonical(body)) != told:
            raise CheckpointError(path, "it is corrupt: its hash is not what it says")
        if body["schema"] > SCHEMA:
            raise CheckpointError(
                path, f"it is of schema {body['schema']}, and this version of raceway reads up to {SCHEMA}. Upgrade it."
            )
        return body

    @property
    def about(self) -> dict[str, Any]:
        """What was known of the run when it was saved: `steps`, `mean_return`, `score` and the like."""
        return self.manifest["about"]

    @property
    def sha256(self) -> str:
        """A hash of the whole state, but for wall times."""
        return self.manifest["state_sha256"]

    def weights(self) -> Arrays:
        """Return the weights of the policy, by their names."""
        return self._tensors("policy.safetensors")

    def state(self) -> Any:
        """Return the whole state, with writable arrays of its own."""
        doc = self._document()
        arrays = self._tensors("state.safetensors")
        arrays |= {POLICY + name: array for name, array in self.weights().items()}
        for name, blocks in self.manifest["blocks"].items():
            arrays[name] = np.concatenate([self._block(one) for one in blocks])
        try:
            return decode(doc, arrays)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(self.path, f"its state cannot be read ({error!r})") from error

    def _document(self) -> Any:
        return json.loads(self._verified("state.json"))

    def _tensors(self, name: str) -> Arrays:
        try:
            return {key: np.array(array) for key, array in load_tensors(self._verified(name)).items()}
        except SafetensorError as error:
            raise CheckpointError(self.path / name, f"it cannot be read ({error})") from error

    def _verified(self, name: str) -> bytes:
        """Return the contents of a file, which are what was written."""
        told = self.manifest["files"].get(name)
        if told is None:
            raise CheckpointError(self.path / "manifest.json", f"it does not tell of {name}")
        content = _read(self.path / name)
        if len(content) != told["size"]:
            raise CheckpointError(self.path / name, f"it has {len(content):,} bytes, and {told['size']:,} were written")
        if _hash(content) != told["sha256"]:
            raise CheckpointError(self.path / name, "it is corrupt: its hash is not what was written")
        return content

    def _block(self, name: str) -> Array:
        path = self.path.parent / "blocks" / f"{name}.npy"
        try:
            array = np.lib.format.read_array(io.BytesIO(_read(path)), allow_pickle=False)
        except ValueError as error:
            raise CheckpointError(path, f"it is corrupt ({error})") from error
        if hash_of(array) != name:
            raise CheckpointError(path, "it is corrupt: its hash is not its name")
        return array


class Checkpoints:
    """The checkpoints of a run: the latest few, and the best."""

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        self.folder, self.keep = Path(folder), keep

    def all(self) -> list[Checkpoint]:
        """Return those that are there, the oldest first. Nothing is checked."""
        if not self.folder.is_dir():
            return []
        return [Checkpoint(path) for path in sorted(self.folder.iterdir()) if path.name.isdigit() and path.is_dir()]

    def find(self, which: str | int = "latest") -> Checkpoint:
        """Return the `latest`, the `best`, or that of so many steps, having checked what it says of itself."""
        there = self.all()
        if not there:
            raise CheckpointError(self.folder, "there is no checkpoint. It may have ended before the first was due.")
        if which == "best":
            return self.best() or self.find("latest")
        if which == "latest":
            found = there[-1]
        else:
            found = Checkpoint(self.folder / _name(int(which)))
            if found.path not in [one.path for one in there]:
                steps = ", ".join(str(int(one.path.name)) for one in there)
                raise CheckpointError(self.folder, f"there is no checkpoint of {which} steps. There are: {steps}")
        found.manifest  # noqa: B018 - is read, and checked
        return found

    def best(self) -> Checkpoint | None:
        """Return the one with the highest score, if any has one."""
        scored = [one for one in self.all() if self._score(one) is not None]
        return max(scored, key=lambda one: (self._score(one), one.path.name), default=None)

    def _score(self, one: Checkpoint) -> float | None:
        try:
            return one.about.get("score")
        except CheckpointError:
            return None

    def newest_good(self) -> tuple[Checkpoint, Any]:
        """Return the latest that can be read, with its state. Those that cannot are told of."""
        problems: list[CheckpointError] = []
        for one in reversed(self.all()):
            try:
                found = one, one.state()
            except CheckpointError as error:
                problems.append(error)
                continue
            for problem in problems:
                _log.warning("a checkpoint cannot be read: %s. Going on from the one before, %s", problem, one.path)
            return found
        raise problems[0] if problems else CheckpointError(self.folder, "there is no checkpoint to go on from")

    def save(self, state: Any, about: Mapping[str, Any]) -> Checkpoint:
        """Write a state, and remove what is not to be kept. An OSError leaves what was there as it was."""
        final = self.folder / _name(about["steps"])
        aside = self.folder / f".new-{final.name}"
        (self.folder / "blocks").mkdir(parents=True, exist_ok=True)
        self.tidy()
        try:
            self._write(aside, state, about)
            if final.exists():  # one that was gone back behind
                os.rename(final, self.folder / f".old-{final.name}")
            os.rename(aside, final)
            _sync(self.folder)
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            self._sweep()
            raise
        self._prune()
        return Checkpoint(final)

    def _write(self, folder: Path, state: Any, about: Mapping[str, Any]) -> None:
        doc, arrays = encode(state)
        long = {name: _rows(array) for name, array in arrays.items() if array.nbytes > BLOCK and array.ndim}
        blocks = {name: [self._put_block(part) for part in parts] for name, parts in long.items()}
        short = {name: array for name, array in arrays.items() if name not in long}
        policy = {name[len(POLICY) :]: short.pop(name) for name in list(short) if name.startswith(POLICY)}
        hashes = {
            name: hash_of(array) for name, array in {**short, **{POLICY + k: v for k, v in policy.items()}}.items()
        }
        hashes |= {name: _hash("".join(parts).encode()) for name, parts in blocks.items()}
        contents = {
            "state.json": json.dumps(doc).encode(),
            "state.safetensors": save_tensors({name: np.ascontiguousarray(array) for name, array in short.items()}),
            "policy.safetensors": save_tensors({name: np.ascontiguousarray(array) for name, array in policy.items()}),
        }
        body = {
            "schema": SCHEMA,
            "about": dict(about),
            "state_sha256": digest(doc, hashes),
            "files": {name: {"size": len(text), "sha256": _hash(text)} for name, text in contents.items()},
            "blocks": blocks,
        }
        manifest = {"sha256": _hash(_canonical(body)), "body": body}
        folder.mkdir()
        for name, text in {**contents, "manifest.json": json.dumps(manifest, indent=1).encode()}.items():
            _put(folder / name, text)
        _sync(folder)
        _sync(self.folder / "blocks")

    def _put_block(self, part: Array) -> str:
        name = hash_of(part)
        path = self.folder / "blocks" / f"{name}.npy"
        if not path.exists():
            made = io.BytesIO()
            np.lib.format.write_array(made, part, allow_pickle=False)
            aside = path.with_suffix(".new")
            _put(aside, made.getbuffer())
            os.rename(aside, path)
        return name

    def tidy(self) -> None:
        """Remove what a run that was killed has left half done."""
        for pattern in (".new-*", ".old-*"):
            for path in self.folder.glob(pattern):
                shutil.rmtree(path, ignore_errors=True)

    def _prune(self) -> None:
        there, best = self.all(), self.best()
        for one in there[: -self.keep]:
            if best is None or one.path != best.path:
                gone = self.folder / f".old-{one.path.name}"
                os.rename(one.path, gone)
                shutil.rmtree(gone, ignore_errors=True)
        self._sweep()

    def _sweep(self) -> None:
        """Remove blocks that no checkpoint needs."""
        needed: set[str] = set()
        for one in self.all():
            try:
                needed.update(name for names in one.manifest["blocks"].values() for name in names)
            except CheckpointError:
                return  # whoever mends it will need its blocks
        for path in (self.folder / "blocks").iterdir():
            if path.stem not in needed or path.suffix != ".npy":
                path.unlink(missing_ok=True)


def _name(steps: int) -> str:
    return f"{steps:012d}"


def _rows(array: Array) -> Iterator[Array]:
    """Cut an array into blocks of rows."""
    each = max(BLOCK // max(array[:1].nbytes, 1), 1)
    for begin in range(0, len(array), each):
        yield array[begin : begin + each]


def _canonical(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(path, f"it cannot be read ({error.strerror})") from error


def _put(path: Path, content: Any) -> None:
    """Write a file and bring it to the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Bring to the disk what a folder lists."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
