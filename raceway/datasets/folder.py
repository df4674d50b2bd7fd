"""A dataset as a folder that exists completely or not at all.

    cartpole/
      dataset.json              schema, spaces, what recorded it, counts, returns, sizes and hashes of the parts
      part-00000.safetensors    whole episodes: obs, action, reward, terminated, truncated, final_obs, length
      part-00001.safetensors    …

It is written under a temporary name beside its path, flushed to the disk, and then renamed. Reading trusts nothing:
every file is checked against `dataset.json`, and that against its own hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.checkpoints.files import read_file, remove_tree, sync_directory, write_file
from raceway.datasets.dataset import Dataset, Part
from raceway.datasets.episodes import check_episodes, no_episodes
from raceway.datasets.tensor_file import check_storable, map_columns, write_columns
from raceway.errors import CheckpointError, ConfigError, DatasetError
from raceway.file_schemas import Migrations, migrate, schema_mismatch
from raceway.rl import Batch, concat, episode_sums, tree_map
from raceway.rl.space_json import space_from_json, space_to_json

INDEX_FILE = "dataset.json"
SCHEMA = 1
MIGRATIONS: Migrations = {}
PART_BYTES = 64 << 20
"""Approximate size of a part: what is held in memory while a dataset is written."""
_BODY = {
    "schema": int, "observation_space": dict, "action_space": dict, "about": dict, "episodes": int, "steps": int,
    "returns": dict, "parts": list,
}  # fmt: skip
_PART = {"episodes": int, "steps": int, "size": int, "sha256": str}


class DatasetWriter(AbstractContextManager["DatasetWriter"]):
    """Writes a dataset. It appears at its path when the context ends, unless by an error.

    Args:
        path: the folder, which must not exist.
        observation_space: the space of the observations.
        action_space: the space of the actions.
        about: what recorded it, as plain data; see `Dataset`.
        part_bytes: approximate size of a part.
    """

    def __init__(
        self,
        path: str | Path,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        about: Mapping[str, Any],
        *,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.path, self._spaces, self._part_bytes = check_new(path), (observation_space, action_space), part_bytes
        self._body: dict[str, Any] = {
            "schema": SCHEMA,
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
            "about": json.loads(json.dumps(dict(about), default=repr)),
        }
        check_storable(no_episodes(*self._spaces))
        self._temporary = self.path.with_name(f".{self.path.name}.new-{os.urandom(4).hex()}")
        self._held: list[Batch] = []
        self._held_bytes = 0
        self._parts: list[dict[str, Any]] = []
        self._returns: list[np.ndarray] = []

    def __enter__(self) -> DatasetWriter:
        """Create the temporary folder."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._temporary.mkdir()
        except OSError as error:
            raise self._cannot_write(error) from error
        return self

    def add(self, episodes: Batch) -> None:
        """Add whole episodes: a batch with the columns of `no_episodes`."""
        try:
            check_episodes(episodes, *self._spaces)
        except ValueError as error:
            raise DatasetError(self.path, f"these episodes cannot be added: {error}") from error
        self._held.append(episodes)
        self._returns.append(episode_sums(episodes["reward"], episodes["length"]))
        sizes: list[int] = []
        tree_map(lambda column: sizes.append(column.nbytes), episodes)
        self._held_bytes += sum(sizes)
        if self._held_bytes >= self._part_bytes:
            self._write_part()

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Complete the dataset; after an error, remove what was written."""
        try:
            if kind is None:
                self._complete()
        finally:
            remove_tree(self._temporary)

    def _write_part(self) -> None:
        batch, self._held, self._held_bytes = concat(self._held), [], 0
        try:
            entry = write_columns(self._temporary / _part_name(len(self._parts)), batch)
        except OSError as error:
            raise self._cannot_write(error) from error
        counts = {"episodes": len(batch["length"]), "steps": len(batch["reward"])}
        self._parts.append({**counts, **entry})

    def _complete(self) -> None:
        if not self._returns:
            raise DatasetError(self.path, "it was not written: no episode was added")
        if self._held:
            self._write_part()
        returns = np.concatenate(self._returns)
        body = {
            **self._body,
            "episodes": len(returns),
            "steps": sum(part["steps"] for part in self._parts),
            "returns": {name: float(getattr(returns, name)()) for name in ("mean", "std", "min", "max")},
            "parts": self._parts,
        }
        try:
            write_file(
                self._temporary / INDEX_FILE, json.dumps({"sha256": _hash(body), "body": body}, indent=1).encode()
            )
            sync_directory(self._temporary)
            check_new(self.path)
            os.rename(self._temporary, self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise self._cannot_write(error) from error

    def _cannot_write(self, error: OSError) -> DatasetError:
        where = f": {error.filename}" if error.filename is not None else ""
        return DatasetError(self.path, f"it cannot be written ({error.strerror}{where})")


def check_new(path: str | Path) -> Path:
    """Return the path of a dataset to write. Raise ConfigError if something exists there."""
    if os.path.lexists(path):
        raise ConfigError(f"{path} exists, and a dataset is never overwritten. Choose another path, or remove it.")
    return Path(path)


def save_dataset(dataset: Dataset, path: str | Path) -> Dataset:
    """Write a dataset of any format to a new folder, and return it as it is there."""
    with DatasetWriter(path, dataset.observation_space, dataset.action_space, dataset.about) as writer:
        for batch in dataset.batches():
            writer.add(batch)
    return read_folder(path)


def read_folder(path: str | Path) -> Dataset:
    """Return the dataset in a folder. Its parts are checked when they are first used."""
    directory = Path(path)
    file = directory / INDEX_FILE
    body, sha256 = _read_index(file)
    try:
        observation_space = space_from_json(body["observation_space"])
        action_space = space_from_json(body["action_space"])
        like = no_episodes(observation_space, action_space)
        check_storable(like)
    except ConfigError as error:
        raise DatasetError(file, f"it is corrupt: {error}") from error
    parts = [
        Part(
            entry["episodes"],
            entry["steps"],
            partial(_read_part, directory / _part_name(number), entry, like, (observation_space, action_space)),
        )
        for number, entry in enumerate(body["parts"])
    ]
    return Dataset(str(directory), observation_space, action_space, parts, body["about"], sha256)


def _read_part(path: Path, entry: Mapping[str, Any], like: Batch, both: tuple[spaces.Space, spaces.Space]) -> Batch:
    batch = map_columns(path, entry["size"], entry["sha256"], like)
    try:
        check_episodes(batch, *both)
    except ValueError as error:
        raise DatasetError(path, f"it is corrupt: {error}") from error
    if (len(batch["length"]), len(batch["reward"])) != (entry["episodes"], entry["steps"]):
        raise DatasetError(path, f"it is corrupt: {INDEX_FILE} has other numbers of episodes and steps")
    return batch


def _read_index(file: Path) -> tuple[dict[str, Any], str]:
    """Return the body of `dataset.json`, after checking it, and its hash."""
    try:
        doc = json.loads(read_file(file))
    except CheckpointError as error:
        raise DatasetError(file, error.reason) from error
    except (RecursionError, ValueError) as error:
        raise DatasetError(file, f"it is corrupt ({error})") from error
    problem = schema_mismatch(doc, {"sha256": str, "body": {"schema": int}})
    if problem:
        raise DatasetError(file, f"it does not describe a dataset: {problem}")
    body = doc["body"]
    if body["schema"] > SCHEMA:
        raise DatasetError(
            file, f"it has schema {body['schema']}, and this version of raceway reads up to {SCHEMA}. Upgrade raceway."
        )
    if _hash(body) != doc["sha256"]:
        raise DatasetError(file, "it is corrupt: its contents do not match its hash")
    body = migrate(body, body["schema"], SCHEMA, MIGRATIONS)
    problem = schema_mismatch(body, _BODY) or _find_problem(body)
    if problem:
        raise DatasetError(file, f"it is corrupt: {problem}")
    if not body["episodes"]:
        raise DatasetError(file, "the dataset is empty: it has no episode")
    return body, doc["sha256"]


def _find_problem(body: Mapping[str, Any]) -> str | None:
    """Return the first part that is described wrongly, or numbers that do not fit together, or None."""
    for number, entry in enumerate(body["parts"]):
        problem = schema_mismatch(entry, _PART, f"part {number}")
        if problem:
            return problem
        if not 1 <= entry["episodes"] <= entry["steps"]:
            return f"part {number} has {entry['episodes']} episodes and {entry['steps']} steps"
    for name in ("episodes", "steps"):
        if body[name] != sum(entry[name] for entry in body["parts"]):
            return f"its {body[name]} {name} are not those of its parts"
    return None


def _part_name(number: int) -> str:
    return f"part-{number:05d}.safetensors"


def _hash(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
