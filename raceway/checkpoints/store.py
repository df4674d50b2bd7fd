"""Checkpoints: directories of plain data that exist completely or not at all.

    checkpoints/
      000000204800/             named by environment steps
        manifest.json           sizes and hashes of the files beside it, and the names of the blocks they need
        state.json              the state without its arrays
        state.safetensors       arrays, by their path in the state
        policy.safetensors      the weights of the agent, by parameter name
      blocks/<sha256>.npy       parts of large arrays, such as replay, shared by checkpoints

A large array is cut into blocks of rows named by the hash of their contents, so only blocks that changed since the last
checkpoint are written. Everything is written under a temporary name, flushed to the disk, and then renamed.

Reading trusts nothing: each file is checked against the manifest, nothing in it is run or imported, and no file outside
the directory is opened. Anything unreadable is a `CheckpointError` that names the file and the reason.
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

from raceway.checkpoints.blocks import BlockStore, is_large
from raceway.checkpoints.encoding import Array, Arrays, decode, encode, hash_array, hash_state
from raceway.checkpoints.files import read_file, refuse_symlink, remove_tree, sync_directory, write_file
from raceway.checkpoints.manifest import MALFORMED, encode_manifest, read_manifest, sha256_of
from raceway.checkpoints.migrations import migrate_decoded_state, migrate_state, migrate_weights
from raceway.checks import check_int
from raceway.errors import CheckpointError

POLICY_PREFIX = "state/learner/policy/"
"""Path of the agent's weights in a state."""
_NEW, _OLD, _REPLACED = ".new-", ".old-", ".was-"
"""Prefixes of the names of checkpoints that are being written, removed, or replaced."""
_TENSOR_DTYPES = frozenset(np.dtype(code).newbyteorder("<").str for code in "?bBhHiIqQefd")
"""Dtypes that a safetensors file preserves exactly. Arrays of other dtypes are stored as blocks."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. Its files are read on demand, and verified."""

    path: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The body of its manifest, after checking it."""
        path = refuse_symlink(self.path) / "manifest.json"
        body = read_manifest(path)
        if self.path.name.isdigit() and body["about"]["steps"] != self.steps:
            raise CheckpointError(path, f"it belongs to another checkpoint, at {body['about']['steps']} steps")
        return body

    @property
    def steps(self) -> int:
        """Environment steps, from its directory's name."""
        return int(self.path.name.removeprefix(_REPLACED))

    @property
    def about(self) -> dict[str, Any]:
        """A description of the run when it was saved: `steps`, `mean_return`, `score` and others."""
        return self.manifest["about"]

    @property
    def sha256(self) -> str:
        """A hash of the whole state except wall-clock times and worker names."""
        return self.manifest["state_sha256"]

    def weights(self) -> Arrays:
        """Return the weights of the agent, by parameter name."""
        large = {
            name[len(POLICY_PREFIX) :]: self._read_blocks(name)
            for name in self.manifest["blocks"]
            if name.startswith(POLICY_PREFIX)
        }
        return migrate_weights(self._read_tensors("policy.safetensors") | large, self.manifest["schema"])[0]

    def knobs(self) -> dict[str, Any]:
        """Return the knobs of exploration, by name."""
        if self.manifest["schema"] >= 3:
            return self.about["knobs"]
        return migrate_weights(self._read_tensors("policy.safetensors"), self.manifest["schema"])[1]

    def state(self) -> Any:
        """Return the whole state, with new, writable arrays."""
        doc = self._read_document()
        arrays = self._read_tensors("state.safetensors")
        arrays |= {POLICY_PREFIX + name: array for name, array in self._read_tensors("policy.safetensors").items()}
        arrays |= {name: self._read_blocks(name) for name in self.manifest["blocks"]}
        try:
            schema = self.manifest["schema"]
            return migrate_decoded_state(decode(migrate_state(doc, schema), arrays), schema)
        except (MemoryError, *MALFORMED) as error:
            raise CheckpointError(self.path / "state.json", f"its state cannot be read ({error!r})") from error

    def _read_document(self) -> Any:
        try:
            return json.loads(self._read_verified("state.json"))
        except (MemoryError, RecursionError, ValueError) as error:
            raise CheckpointError(self.path / "state.json", f"it cannot be read ({error})") from error

    def _read_tensors(self, name: str) -> Arrays:
        try:
            return {key: np.array(array) for key, array in load_tensors(self._read_verified(name)).items()}
        except (SafetensorError, MemoryError, *MALFORMED) as error:
            raise CheckpointError(self.path / name, f"it cannot be read ({error})") from error

    def _read_blocks(self, name: str) -> Array:
        return BlockStore(self.path.parent / "blocks").get(self.manifest["blocks"][name])

    def _read_verified(self, name: str) -> bytes:
        """Return the contents of a file, after checking its size and hash."""
        entry = self.manifest["files"].get(name)
        if entry is None:
            raise CheckpointError(self.path / "manifest.json", f"it has no entry for {name}")
        content = read_file(self.path / name, entry["size"])
        if sha256_of(content) != entry["sha256"]:
            raise CheckpointError(self.path / name, "it is corrupt: its hash is not the one in the manifest")
        return content


class Checkpoints:
    """The checkpoints of a run: the latest few, and the best.

    Args:
        directory: the directory that holds them.
        keep: number of latest checkpoints that are kept.
    """

    def __init__(self, directory: str | Path, keep: int = 3) -> None:
        self.directory, self.keep = refuse_symlink(Path(directory)), check_int("keep", keep)
        self._blocks = BlockStore(self.directory / "blocks")
        self._prune_failing = False  # so that the warning is logged once

    def all(self) -> list[Checkpoint]:
        """Return all checkpoints, oldest first, without checking them."""
        if not self.directory.is_dir():
            return []
        entries = {path.name for path in self.directory.iterdir()}
        final_names = {name.removeprefix(_REPLACED) for name in entries}
        names = [
            name if name in entries else _REPLACED + name for name in final_names if name.isascii() and name.isdigit()
        ]
        checkpoints = (Checkpoint(self.directory / name) for name in names)
        return sorted(checkpoints, key=lambda checkpoint: (checkpoint.steps, checkpoint.path.name))

    def find(self, which: str | int = "latest") -> Checkpoint:
        """Return the `latest` checkpoint, the `best`, or the one at a number of steps, after checking its manifest."""
        checkpoints = self.all()
        if not checkpoints:
            raise CheckpointError(
                self.directory, "there is no checkpoint. The run may have ended before the first one."
            )
        if which == "best":
            return self.best() or self.find("latest")
        by_steps = {str(checkpoint.steps): checkpoint for checkpoint in checkpoints}
        checkpoint = checkpoints[-1] if which == "latest" else by_steps.get(str(which))
        if checkpoint is None:
            raise CheckpointError(
                self.directory, f"there is no checkpoint at {which} steps. There are: {', '.join(by_steps)}"
            )
        checkpoint.manifest  # noqa: B018 - reading it checks it
        return checkpoint

    def best(self) -> Checkpoint | None:
        """Return the checkpoint with the highest score, the latest of equals, or None if none has a score."""
        scored = [
            (score, checkpoint.steps, checkpoint)
            for checkpoint in self.all()
            if (score := _score(checkpoint)) is not None
        ]
        return max(scored, key=lambda entry: entry[:2])[2] if scored else None

    def newest_readable(self, read: Callable[[Checkpoint], Any] = Checkpoint.state) -> tuple[Checkpoint, Any]:
        """Return the latest checkpoint that can be read, and what `read` returns for it. Log those that cannot."""
        errors: list[CheckpointError] = []
        for checkpoint in reversed(self.all()):
            try:
                value = read(checkpoint)
            except CheckpointError as error:
                errors.append(error)
                continue
            for problem in errors:
                _log.warning("a checkpoint cannot be read: %s. Using an earlier one, %s", problem, checkpoint.path)
            return checkpoint, value
        raise errors[0] if errors else CheckpointError(self.directory, "there is no checkpoint to resume from")

    def save(self, state: Any, about: Mapping[str, Any]) -> Checkpoint:
        """Save a state, and remove checkpoints that are no longer kept. An OSError leaves the others unchanged."""
        final = self.directory / f"{about['steps']:012d}"
        temporary = self.directory / f"{_NEW}{final.name}"
        self._begin_save()
        try:
            self._write(temporary, state, about)
            if os.path.lexists(final):  # the run resumed from an earlier one; `all` finds it under either name
                os.rename(final, self.directory / f"{_REPLACED}{final.name}")
            os.rename(temporary, final)
            sync_directory(self.directory)
        except BaseException:
            self.clean_up()
            self._blocks.undo_save(self._referenced_blocks()[0])
            raise
        self._prune(int(about["steps"]))
        return Checkpoint(final)

    def _begin_save(self) -> None:
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True, exist_ok=True)
            sync_directory(self.directory.parent)
        self.clean_up()
        self._blocks.begin_save()

    def _write(self, directory: Path, state: Any, about: Mapping[str, Any]) -> None:
        doc, arrays = encode(state)
        policy = {name: array for name, array in arrays.items() if name.startswith(POLICY_PREFIX) and _is_tensor(array)}
        small = {
            name: array
            for name, array in arrays.items()
            if name not in policy and _is_tensor(array) and not is_large(array)
        }
        blocks = {name: self._blocks.put(arrays[name]) for name in arrays if name not in policy and name not in small}
        hashes = {name: hash_array(array) for name, array in {**policy, **small}.items()}
        hashes |= {name: sha256_of("".join(names).encode()) for name, names in blocks.items()}
        contents = {
            "state.json": json.dumps(doc).encode(),
            "state.safetensors": _tensor_file(small),
            "policy.safetensors": _tensor_file({name[len(POLICY_PREFIX) :]: array for name, array in policy.items()}),
        }
        manifest = encode_manifest(contents, blocks, hash_state(doc, hashes), about)
        directory.mkdir()
        for name, content in {**contents, "manifest.json": manifest}.items():
            write_file(directory / name, content)
        sync_directory(directory)
        sync_directory(self.directory / "blocks")

    def clean_up(self) -> None:
        """Remove the partial checkpoint of a killed run, and put back the one that it was about to replace."""
        for path in self.directory.glob(f"{_REPLACED}*"):
            final = self.directory / path.name.removeprefix(_REPLACED)
            if os.path.lexists(final):
                remove_tree(path)
            else:
                os.rename(path, final)
        for pattern in (f"{_NEW}*", f"{_OLD}*"):
            for path in self.directory.glob(pattern):
                remove_tree(path)

    def _prune(self, steps: int) -> None:
        """Remove checkpoints that are no longer kept.

        Those after `steps`, the last one saved, do not count as latest: the run could not resume from any of them.
        """
        checkpoints, best = [checkpoint for checkpoint in self.all() if checkpoint.steps <= steps], self.best()
        try:
            for checkpoint in checkpoints[: -self.keep]:
                if best is None or checkpoint.path != best.path:
                    os.rename(checkpoint.path, self.directory / f"{_OLD}{checkpoint.path.name}")
            self.clean_up()
            referenced, complete = self._referenced_blocks()
            if complete:
                self._blocks.remove_unreferenced(referenced)
            self._prune_failing = False
        except OSError as error:
            if not self._prune_failing:
                _log.warning("old checkpoints in %s cannot be removed: %s", self.directory, error)
            self._prune_failing = True

    def _referenced_blocks(self) -> tuple[set[str], bool]:
        """Return the blocks that checkpoints refer to, and whether this is all: an unreadable one may need others."""
        referenced: set[str] = set()
        complete = True
        for checkpoint in self.all():
            try:
                referenced.update(name for names in checkpoint.manifest["blocks"].values() for name in names)
            except CheckpointError:
                complete = False
        return referenced, complete


def _score(checkpoint: Checkpoint) -> float | None:
    try:
        score = checkpoint.about.get("score")
    except CheckpointError:
        return None
    return score if isinstance(score, (int, float)) and not math.isnan(score) else None


def _is_tensor(array: Array) -> bool:
    return array.dtype.str in _TENSOR_DTYPES


def _tensor_file(arrays: Arrays) -> bytes:
    return save_tensors({name: np.asarray(array, order="C") for name, array in arrays.items()})
