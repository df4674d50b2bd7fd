"""The column `episode_info`: what is reported of each episode that ended, beside its return and length.

Names of values differ between environments and between episodes, while a batch consists of arrays, which are
concatenated, sent and saved without being looked into. So the column is a line of JSON for each episode, as an array of
bytes: lines are concatenated like any other column. A batch has it only if there is something to report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np

EPISODE_INFO = "episode_info"
_NEWLINE = ord("\n")


def encode_episodes(episodes: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Return the column of some episodes, from what is reported of each.

    >>> encode_episodes([{"success": 1.0}, {}]).tobytes().splitlines()
    [b'{"success": 1.0}', b'']
    """
    lines = "".join(f"{json.dumps(episode)}\n" if episode else "\n" for episode in episodes)
    return np.frombuffer(lines.encode(), np.uint8)


def decode_episodes(column: np.ndarray) -> list[dict[str, Any]]:
    """Return what `encode_episodes` was called with, also from a column that was concatenated.

    >>> decode_episodes(encode_episodes([{"success": 1.0}, {}]))
    [{'success': 1.0}, {}]
    """
    lines = column.tobytes().splitlines()
    episodes: list[dict[str, Any]] = json.loads(b"[" + b",".join(line or b"{}" for line in lines) + b"]")
    return episodes


def concat_episodes(columns: Sequence[np.ndarray | None], num_episodes: Sequence[int]) -> np.ndarray | None:
    """Concatenate columns, of which those of batches with nothing to report are None; None if all are.

    >>> column = concat_episodes([None, encode_episodes([{"success": 1.0}])], [2, 1])
    >>> decode_episodes(column)
    [{}, {}, {'success': 1.0}]
    """
    if all(column is None for column in columns):
        return None
    return np.concatenate([
        np.full(num, _NEWLINE, np.uint8) if column is None else column
        for column, num in zip(columns, num_episodes, strict=True)
    ])  # fmt: skip


def with_episode_info(batches: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Return batches that all have the column if one of them has it, so that they can be concatenated."""
    having = sum(EPISODE_INFO in batch for batch in batches)
    if having in (0, len(batches)):
        return batches
    return [{EPISODE_INFO: np.full(_num_episodes(batch), _NEWLINE, np.uint8), **batch} for batch in batches]


def _num_episodes(batch: Mapping[str, Any]) -> int:
    return len(batch["episode_return"] if "episode_return" in batch else batch.get("length", ()))


def as_number(value: Any) -> float | None:
    """Return a value of an info as a float, or None if it is not one finite number.

    >>> as_number(True), as_number(np.float32(0.5)), as_number(np.array(3)), as_number([3]), as_number(math.nan)
    (1.0, 0.5, 3.0, None, None)
    """
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # of numpy or torch
        value = value.item()
    if not isinstance(value, Real):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def success_of(info: Any) -> float | None:
    """Return `is_success` of the info of an episode's last step, or None if it has none."""
    return as_number(info.get("is_success")) if isinstance(info, Mapping) else None
