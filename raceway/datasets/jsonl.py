"""A dataset as a JSONL file: a description in the first line, then one episode in every line.

    {"schema": 1, "observation_space": {…}, "action_space": {…}, "about": {"env": "CartPole-v1"}}
    {"obs": [[…], […], […]], "action": [1, 0], "reward": [1.0, 1.0], "terminated": true}

Spaces are written as in a run's `config.json`. An episode of T steps has T + 1 observations, the final one included; of
a Dict space, `obs` is an object with a list for each part. An episode that is not `terminated` was truncated after its
last step; one that was both has `"truncated": true` too. `about` may be left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gymnasium import spaces

from raceway.checkpoints.files import open_regular_file
from raceway.datasets.dataset import Dataset, Part
from raceway.datasets.episodes import check_episodes, make_episode
from raceway.errors import ConfigError, DatasetError
from raceway.file_schemas import schema_mismatch
from raceway.rl import Batch, concat
from raceway.rl.space_json import space_from_json

SCHEMA = 1
_HEAD = {"schema": int, "observation_space": dict, "action_space": dict}
_EPISODE = {"obs": (list, dict), "action": (list, dict), "reward": list, "terminated": bool}


def read_jsonl(path: str | Path) -> Dataset:
    """Return the dataset in a JSONL file. All of it is read into memory."""
    episodes: list[Batch] = []
    sha256, head, both = hashlib.sha256(), {}, None
    try:
        with open(open_regular_file(Path(path)), "rb") as file:
            for number, line in enumerate(file, 1):
                sha256.update(line)
                doc = _parse(path, number, line)
                if both is None:
                    head, both = doc, _spaces(path, doc)
                else:
                    episodes.append(_read_episode(path, number, doc, both))
    except OSError as error:
        raise DatasetError(path, f"it cannot be read ({error.strerror})") from error
    if both is None or not episodes:
        raise DatasetError(path, "the dataset is empty: it has no episode")
    batch = concat(episodes)
    part = Part(len(batch["length"]), len(batch["reward"]), lambda: batch)
    return Dataset(str(path), *both, [part], head.get("about", {}), sha256.hexdigest())


def _parse(path: str | Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)
    except (RecursionError, ValueError) as error:
        raise DatasetError(path, f"line {number} is not JSON ({error})") from error


def _spaces(path: str | Path, head: Any) -> tuple[spaces.Space, spaces.Space]:
    problem = schema_mismatch(head, _HEAD)
    if problem is None and not isinstance(head.get("about", {}), dict):
        problem = f"about is {head['about']!r}, not an object"
    if problem:
        raise DatasetError(path, f"line 1 does not describe a dataset: {problem}")
    if head["schema"] > SCHEMA:
        raise DatasetError(
            path, f"it has schema {head['schema']}, and this version of raceway reads up to {SCHEMA}. Upgrade raceway."
        )
    try:
        return space_from_json(head["observation_space"]), space_from_json(head["action_space"])
    except ConfigError as error:
        raise DatasetError(path, f"line 1 does not describe a dataset: {error}") from error


def _read_episode(
    path: str | Path, number: int, doc: Mapping[str, Any], both: tuple[spaces.Space, spaces.Space]
) -> Batch:
    problem = schema_mismatch(doc, _EPISODE)
    if problem is None and type(doc.get("truncated", False)) is not bool:
        problem = f"truncated is {doc['truncated']!r}, not a bool"
    if problem is None and not doc["reward"]:
        problem = "it has no steps"
    if problem:
        raise DatasetError(path, f"line {number} is not an episode: {problem}")
    columns = {name: doc[name] for name in ("obs", "action", "reward", "terminated")}
    try:
        episode = make_episode(*both, **columns, truncated=doc.get("truncated", not doc["terminated"]))
        check_episodes(episode, *both)
    except (OverflowError, ValueError) as error:
        raise DatasetError(path, f"line {number} is not an episode: {error}") from error
    return episode
