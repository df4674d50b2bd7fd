"""How several buffers share one block: one after another, each aligned."""

from __future__ import annotations

from typing import Any

import numpy as np

ALIGN_BYTES = 64


def aligned_size(lengths: list[int]) -> int:
    """Return the bytes that buffers of these lengths take in a block.

    >>> aligned_size([1, 64, 65])
    256
    """
    return sum(-(-length // ALIGN_BYTES) * ALIGN_BYTES for length in lengths)


def split_buffers(data: np.ndarray[Any, Any], lengths: list[int]) -> list[Any]:
    """Return the bytes of a block as one array per buffer."""
    buffers = []
    start = 0
    for length in lengths:
        buffers.append(data[start : start + length])
        start += -(-length // ALIGN_BYTES) * ALIGN_BYTES
    return buffers
