"""Fragments of turn-based environments, [T, B], in which every slot has its own number of steps.

Agents take turns, so in the same time one has more steps than another. The steps of a slot are its last rows, and
`num_turns`, [B], says how many they are: the rows before them are padding, and not `valid`. That way the recursions of
advantages and V-trace, which run backwards from `last_obs`, never pass through padding. Padding is no end of an
episode: the first step after it continues the last one of the previous fragment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from raceway.rl.batch import Batch, tree_map

Array = np.ndarray


def is_padded(batch: Batch) -> bool:
    """Whether a fragment has its own number of steps for every slot."""
    return "num_turns" in batch


def padding_of(batch: Batch) -> Array | None:
    """Return which rows of a fragment are padding, [T, B], or None if there is none.

    >>> padding_of({"reward": np.zeros((2, 3)), "num_turns": np.array([0, 1, 2])}).tolist()
    [[True, True, False], [True, False, False]]
    """
    if not is_padded(batch):
        return None
    length = len(batch["reward"])
    return np.arange(length)[:, None] < length - batch["num_turns"]


def pad_in_front(columns: Any, num_turns: Array, num_rows: int) -> Any:
    """Move the first `num_turns` rows of every slot to the end, and fill the rows before with copies of the first.

    Args:
        columns: a tree of arrays, [T, B, ...].
        num_turns: the number of rows of every slot, [B].
        num_rows: the number T of rows.

    >>> pad_in_front(np.array([[1, 3], [2, 0]]), np.array([2, 1]), 2).tolist()
    [[1, 3], [2, 3]]
    """
    order = np.maximum(np.arange(num_rows)[:, None] - (num_rows - num_turns), 0)
    slots = np.arange(len(num_turns))
    return tree_map(lambda part: part[order, slots], columns)


def move_padding_to_front(rows: Batch) -> Batch:
    """Return rows, [T, B], with the valid ones of every slot at the end, in their order.

    >>> rows = {"reward": np.array([[1], [2], [3]]), "valid": np.array([[True], [False], [True]])}
    >>> move_padding_to_front(rows)["reward"].ravel().tolist()
    [2, 1, 3]
    """
    order = np.argsort(rows["valid"], axis=0, kind="stable")
    slots = np.arange(order.shape[1])
    return tree_map(lambda part: part[order, slots], rows)
