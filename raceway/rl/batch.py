"""A batch: a nested mapping of arrays, with one row for each step.

Observations of a Dict space keep their keys, so `batch["obs"]` is an array or a mapping of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Batch = dict[str, Any]


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every array of a tree, or to the arrays of several trees with the same keys.

    >>> tree_map(lambda x: x + 1, {"a": 1, "b": {"c": 2}})
    {'a': 2, 'b': {'c': 3}}
    """
    if isinstance(tree, Mapping):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    return function(tree, *others)


def concat(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, column by column.

    >>> concat([{"reward": np.array([1.0])}, {"reward": np.array([2.0, 3.0])}])
    {'reward': array([1., 2., 3.])}
    """
    if len(batches) == 1:
        return batches[0]
    for other in batches[1:]:
        if other.keys() != batches[0].keys():
            raise ValueError(f"cannot concatenate batches with different columns: {list(batches[0])} and {list(other)}")
    return tree_map(lambda *columns: np.concatenate(columns), *batches)


def num_steps(batch: Batch) -> int:
    """Return the number of environment steps in a batch.

    >>> num_steps({"reward": np.zeros((5, 2))})
    10
    """
    if "valid" in batch:
        return int(batch["valid"].sum())
    return int(np.size(batch["reward"])) if "reward" in batch else len(batch["action"])


def split_episodes(batch: Batch, min_steps: int) -> list[Batch]:
    """Split a batch of concatenated episodes into batches of at least `min_steps` steps; the last may have fewer.

    >>> batch = {"reward": np.arange(6), "length": np.array([2, 1, 3])}
    >>> [part["reward"].tolist() for part in split_episodes(batch, 3)]
    [[0, 1, 2], [3, 4, 5]]
    """
    lengths = batch["length"]
    ends = np.cumsum(lengths)
    edges, begin = [0], 0  # episode indices at which parts begin and end
    for index, end in enumerate(ends.tolist(), 1):
        if end - begin >= min_steps:
            edges.append(index)
            begin = end
    if edges[-1] != len(lengths):
        edges.append(len(lengths))
    steps = [0, *ends.tolist()]
    total = steps[-1]
    cuts = [(slice(steps[a], steps[b]), slice(a, b)) for a, b in pairwise(edges)]
    return [
        {
            name: tree_map(lambda rows, cut=cut: rows[cut[0] if len(rows) == total else cut[1]], column)
            for name, column in batch.items()
        }
        for cut in cuts
    ]


def without_episode_columns(batch: Batch) -> Batch:
    """Return a batch without the `episode_*` columns, which have one row for each finished episode.

    >>> list(without_episode_columns({"reward": np.zeros(2), "episode_return": np.zeros(1)}))
    ['reward']
    """
    return {name: column for name, column in batch.items() if not name.startswith("episode_")}


def num_rows(batch: Batch) -> int:
    """Return the number of rows of a batch, by its first column.

    >>> num_rows({"obs": {"left": np.zeros((3, 2))}})
    3
    """
    column: Any = batch
    while isinstance(column, Mapping):
        column = next(iter(column.values()), ())
    return len(column)
