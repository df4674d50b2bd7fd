"""Datasets of Minari, from its local cache. The only module that imports `minari`."""

from __future__ import annotations

import hashlib
import importlib.util
import re

import numpy as np

from raceway.datasets.dataset import Dataset, Part
from raceway.datasets.episodes import check_episodes, make_episode
from raceway.errors import DatasetError
from raceway.rl import Batch, concat, tree_map

_ID = re.compile(r"(?:[-\w]+/)*[-\w]+-v\d+")


def is_minari_id(name: str) -> bool:
    """Whether a name has the form of a Minari id.

    >>> is_minari_id("D4RL/door/human-v2"), is_minari_id("data/cartpole")
    (True, False)
    """
    return _ID.fullmatch(name) is not None


def read_minari(name: str) -> Dataset:
    """Return a dataset of the local cache. Nothing is downloaded; all of it is read into memory.

    Images that Minari stored as JPEG, its default, are not exactly those that were recorded.
    """
    if importlib.util.find_spec("minari") is None:
        raise DatasetError(
            name,
            "there is no such file or directory. If it is the id of a Minari dataset: pip install 'raceway[minari]'",
        )
    import minari

    try:
        source = minari.load_dataset(name)
    except FileNotFoundError as error:
        raise DatasetError(
            name, "there is no such file or directory, and no such dataset in Minari's local cache. Download it with "
            f"`minari download {name}`, or record one with `raceway record`.",
        ) from error  # fmt: skip
    except (AssertionError, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        raise DatasetError(name, f"Minari cannot read it ({error!r})") from error
    both = source.observation_space, source.action_space
    episodes: list[Batch] = []
    try:
        for data in source.iterate_episodes():
            terminated = bool(data.terminations[-1])
            truncated = bool(data.truncations[-1]) or not terminated  # or the recording ended before the episode
            columns = {"obs": data.observations, "action": data.actions, "reward": data.rewards}
            episode = make_episode(*both, **columns, terminated=terminated, truncated=truncated)
            check_episodes(episode, *both)
            episodes.append(episode)
    except (AssertionError, LookupError, OSError, TypeError, ValueError) as error:
        raise DatasetError(name, f"episode {len(episodes)} cannot be read: {error}") from error
    if not episodes:
        raise DatasetError(name, "the dataset is empty: it has no episode")
    batch, about = concat(episodes), {"minari": name}
    if source.env_spec is not None:
        about["env"] = source.env_spec.id
    if algorithm := source.storage.metadata.get("algorithm_name"):
        about["algorithm"] = str(algorithm)
    part = Part(len(batch["length"]), len(batch["reward"]), lambda: batch)
    return Dataset(name, *both, [part], about, _hash(batch))


def _hash(batch: Batch) -> str:
    sha256 = hashlib.sha256()
    tree_map(lambda column: sha256.update(np.ascontiguousarray(column).tobytes()), batch)
    return sha256.hexdigest()
