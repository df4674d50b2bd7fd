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

Reading one believes nothing: each file is checked against the manifest, nothing in it is run or imported, and no file
is looked for outside the folder. What cannot be read is a `CheckpointError` that names the file and says why.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from raceway.checkpoints import manifest as manifest_file
from raceway.checkpoints.blocks import Blocks, is_long
from raceway.checkpoints.encoding import Array, Arrays, decode, digest, encode, hash_of
from raceway.checkpoints.files import own_folder, put, read, remove, sync
from raceway.checkpoints.manifest import UNREADABLE, sha256_of
from raceway.checks import check_int
from raceway.errors import CheckpointError

POLICY = "state/learner/policy/"
"""Where the weights of the policy stand in a state."""

_TENSORS = frozenset(np.dtype(one).newbyteorder("<").str for one in "?bBhHiIqQefd")
"""Types of arrays that a file of tensors gives back as they were; others are written as blocks."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What is said of it, having been checked."""
        path = own_folder(self.path) / "manifest.json"
        body = manifest_file.read(path)
        if self.path.name.isdigit() and body["about"]["steps"] != self.steps:
            raise CheckpointError(path, f"it is of another checkpoint, of {body['about']['steps']} steps")
        return body

    @property
    def steps(self) -> int:
        """Steps of environments, by its name."""
        return int(self.path.name.removeprefix(_WAS))

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
        blocks = {name[len(POLICY) :]: self._long(name) for name in self.manifest["blocks"] if name.startswith(POLICY)}
        return self._tensors("policy.safetensors") | blocks

    def state(self) -> Any:
        """Return the whole state, with writable arrays of its own."""
        doc = self._document()
        arrays = self._tensors("state.safetensors")
        arrays |= {POLICY + name: array for name, array in self._tensors("policy.safetensors").items()}
        arrays |= {name: self._long(name) for name in self.manifest["blocks"]}
        try:
            return decode(doc, arrays)
        except (MemoryError, *UNREADABLE) as error:
            raise CheckpointError(self.path / "state.json", f"its state cannot be read ({error!r})") from error

    def _document(self) -> Any:
        try:
            return json.loads(self._verified("state.json"))
        except (MemoryError, RecursionError, ValueError) as error:
            raise CheckpointError(self.path / "state.json", f"it cannot be read ({error})") from error

    def _tensors(self, name: str) -> Arrays:
        try:
            return {key: np.array(array) for key, array in load_tensors(self._verified(name)).items()}
        except (SafetensorError, MemoryError, *UNREADABLE) as error:
            raise CheckpointError(self.path / name, f"it cannot be read ({error})") from error

    def _long(self, name: str) -> Array:
        return Blocks(self.path.parent / "blocks").get(self.manifest["blocks"][name])

    def _verified(self, name: str) -> bytes:
        """Return the contents of a file, which are what was written."""
        told = self.manifest["files"].get(name)
        if told is None:
            raise CheckpointError(self.path / "manifest.json", f"it does not tell of {name}")
        content = read(self.path / name, told["size"])
        if sha256_of(content) != told["sha256"]:
            raise CheckpointError(self.path / name, "it is corrupt: its hash is not what was written")
        return content


class Checkpoints:
    """The checkpoints of a run: the latest few, and the best.

    Args:
        folder: where they are.
        keep: how many of the latest stay.
    """

    def __init__(self, folder: str | Path, keep: int = 3) -> None:
        self.folder, self.keep = own_folder(Path(folder)), check_int("keep", keep)
        self._blocks = Blocks(self.folder / "blocks")
        self._cluttered = False  # whether it was said that old ones stay

    def all(self) -> list[Checkpoint]:
        """Return those that are there, the oldest first. Nothing is checked."""
        if not self.folder.is_dir():
            return []
        names = {path.name for path in self.folder.iterdir()}
        final = {name.removeprefix(_WAS) for name in names}
        there = [name if name in names else _WAS + name for name in final if name.isascii() and name.isdigit()]
        return sorted((Checkpoint(self.folder / name) for name in there), key=lambda one: (one.steps, one.path.name))

    def find(self, which: str | int = "latest") -> Checkpoint:
        """Return the `latest`, the `best`, or that of so many steps, having checked what it says of itself."""
        there = self.all()
        if not there:
            raise CheckpointError(self.folder, "there is no checkpoint. It may have ended before the first was due.")
        if which == "best":
            return self.best() or self.find("latest")
        found = there[-1] if which == "latest" else {str(one.steps): one for one in there}.get(str(which))
        if found is None:
            steps = ", ".join(str(one.steps) for one in there)
            raise CheckpointError(self.folder, f"there is no checkpoint of {which} steps. There are: {steps}")
        found.manifest  # noqa: B018 - is read, and checked
        return found

    def best(self) -> Checkpoint | None:
        """Return the one with the highest score, if any has one; of equal ones the latest."""
        scored = [(score, one.steps, one) for one in self.all() if (score := _score(one)) is not None]
        return max(scored, key=lambda entry: entry[:2])[2] if scored else None

    def newest_good(self, read: Callable[[Checkpoint], Any] = Checkpoint.state) -> tuple[Checkpoint, Any]:
        """Return the latest that can be read, with its state or what else is read. Those that cannot are told of."""
        problems: list[CheckpointError] = []
        for one in reversed(self.all()):
            try:
                found = one, read(one)
            except CheckpointError as error:
                problems.append(error)
                continue
            for problem in problems:
                _log.warning("a checkpoint cannot be read: %s. Going on from the one before, %s", problem, one.path)
            return found
        raise problems[0] if problems else CheckpointError(self.folder, "there is no checkpoint to go on from")

    def save(self, state: Any, about: Mapping[str, Any]) -> Checkpoint:
        """Write a state, and remove what is not to be kept. An OSError leaves what was there as it was."""
        final = self.folder / f"{about['steps']:012d}"
        aside = self.folder / f"{_NEW}{final.name}"
        self._begin()
        try:
            self._write(aside, state, about)
            if os.path.lexists(final):  # one that was gone back behind; `all` finds it under either name
                os.rename(final, self.folder / f"{_WAS}{final.name}")
            os.rename(aside, final)
            sync(self.folder)
        except BaseException:
            self.tidy()
            self._blocks.undo(self._needed()[0])
            raise
        self._prune(int(about["steps"]))
        return Checkpoint(final)

    def _begin(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync(self.folder.parent)
        self.tidy()
        self._blocks.begin()

    def _write(self, folder: Path, state: Any, about: Mapping[str, Any]) -> None:
        doc, arrays = encode(state)
        policy = {name: array for name, array in arrays.items() if name.startswith(POLICY) and _is_tensor(array)}
        short = {
            name: array
            for name, array in arrays.items()
            if name not in policy and _is_tensor(array) and not is_long(array)
        }
        blocks = {name: self._blocks.put(arrays[name]) for name in arrays if name not in policy and name not in short}
        hashes = {name: hash_of(array) for name, array in {**policy, **short}.items()}
        hashes |= {name: sha256_of("".join(parts).encode()) for name, parts in blocks.items()}
        contents = {
            "state.json": json.dumps(doc).encode(),
            "state.safetensors": _tensor_file(short),
            "policy.safetensors": _tensor_file({name[len(POLICY) :]: array for name, array in policy.items()}),
        }
        manifest = manifest_file.file_of(contents, blocks, digest(doc, hashes), about)
        folder.mkdir()
        for name, text in {**contents, "manifest.json": manifest}.items():
            put(folder / name, text)
        sync(folder)
        sync(self.folder / "blocks")

    def tidy(self) -> None:
        """Remove what a run that was killed has left half done, and put back what it was about to replace."""
        for path in self.folder.glob(f"{_WAS}*"):
            final = self.folder / path.name.removeprefix(_WAS)
            if os.path.lexists(final):
                remove(path)
            else:
                os.rename(path, final)
        for pattern in (f"{_NEW}*", f"{_OLD}*"):
            for path in self.folder.glob(pattern):
                remove(path)

    def _prune(self, steps: int) -> None:
        """Remove what is not to be kept. Of what is later than the last, none could be gone on from: none counts."""
        there, best = [one for one in self.all() if one.steps <= steps], self.best()
        try:
            for one in there[: -self.keep]:
                if best is None or one.path != best.path:
                    os.rename(one.path, self.folder / f"{_OLD}{one.path.name}")
            self.tidy()
            needed, known = self._needed()
            if known:
                self._blocks.sweep(needed)
            self._cluttered = False
        except OSError as error:
            if not self._cluttered:
                _log.warning("old checkpoints cannot be removed from %s: %s", self.folder, error)
            self._cluttered = True

    def _needed(self) -> tuple[set[str], bool]:
        """Return the blocks that checkpoints need, and whether all are known: one to be mended may need others."""
        needed: set[str] = set()
        known = True
        for one in self.all():
            try:
                needed.update(name for names in one.manifest["blocks"].values() for name in names)
            except CheckpointError:
                known = False
        return needed, known


_NEW, _OLD, _WAS = ".new-", ".old-", ".was-"  # being written; being removed; being replaced


def _score(one: Checkpoint) -> float | None:
    try:
        score = one.about.get("score")
    except CheckpointError:
        return None
    return score if isinstance(score, (int, float)) and not math.isnan(score) else None


def _is_tensor(array: Array) -> bool:
    return array.dtype.str in _TENSORS


def _tensor_file(arrays: Arrays) -> bytes:
    return save_tensors({name: np.asarray(array, order="C") for name, array in arrays.items()})
