"""A batch: a nested mapping of arrays, one row a step.

Observations of a Dict space keep their keys, so `batch["obs"]` is an array or a mapping of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

Batch = dict[str, Any]


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every array of a tree, or of several of one shape.

    >>> tree_map(lambda x: x + 1, {"a": 1, "b": {"c": 2}})
    {'a': 2, 'b': {'c': 3}}
    """
    if isinstance(tree, Mapping):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    return function(tree, *others)


def concat(batches: Sequence[Batch]) -> Batch:
    """Put batches behind one another, column by column.

    >>> concat([{"reward": np.array([1.0])}, {"reward": np.array([2.0, 3.0])}])
    {'reward': array([1., 2., 3.])}
    """
    if len(batches) == 1:
        return batches[0]
    for other in batches[1:]:
        if other.keys() != batches[0].keys():
            raise ValueError(f"batches of other columns cannot be joined: {list(batches[0])} and {list(other)}")
    return tree_map(lambda *columns: np.concatenate(columns), *batches)


def num_steps(batch: Batch) -> int:
    """Return how many steps of an environment a batch holds.

    >>> num_steps({"reward": np.zeros((5, 2))})
    10
    """
    if "valid" in batch:
        return int(batch["valid"].sum())
    return int(np.size(batch["reward"])) if "reward" in batch else len(batch["action"])


def parts_of(batch: Batch, num_steps: int) -> list[Batch]:
    """Divide whole episodes that lie behind one another into batches of at least so many steps, the last maybe fewer.

    >>> batch = {"reward": np.arange(6), "length": np.array([2, 1, 3])}
    >>> [part["reward"].tolist() for part in parts_of(batch, 3)]
    [[0, 1, 2], [3, 4, 5]]
    """
    lengths = batch["length"]
    ends = np.cumsum(lengths)
    places, begin = [0], 0
    for place, end in enumerate(ends.tolist(), 1):
        if end - begin >= num_steps:
            places.append(place)
            begin = end
    if places[-1] != len(lengths):
        places.append(len(lengths))
    steps = [0, *ends.tolist()]
    total = steps[-1]
    cuts = [(slice(steps[a], steps[b]), slice(a, b)) for a, b in pairwise(places)]
    return [
        {
            name: tree_map(lambda rows, cut=cut: rows[cut[0] if len(rows) == total else cut[1]], column)
            for name, column in batch.items()
        }
        for cut in cuts
    ]


def rows_of(batch: Batch) -> Batch:
    """Return a batch without the figures of episodes that ended, which are not of its rows.

    >>> list(rows_of({"reward": np.zeros(2), "episode_return": np.zeros(1)}))
    ['reward']
    """
    return {name: column for name, column in batch.items() if not name.startswith("episode_")}


def num_rows(batch: Batch) -> int:
    """Return how many rows a batch has, by its first column.

    >>> num_rows({"obs": {"left": np.zeros((3, 2))}})
    3
    """
    column: Any = batch
    while isinstance(column, Mapping):
        column = next(iter(column.values()), ())
    return len(column)
