"""A batch: a nested mapping of arrays, one row a step.

Observations of a Dict space keep their keys, so `batch["obs"]` is an array or a mapping of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    return int(batch["valid"].sum()) if "valid" in batch else int(np.size(batch["reward"]))
