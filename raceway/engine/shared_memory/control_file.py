"""The control file of an engine: memory usage of every process, and the release counts of every reader."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Any

import numpy as np

MAX_BLOCKS = 1 << 16
"""Blocks that an arena can have, and so the number of counts in a row."""
NUM_ROWS = 2048
"""Rows in one control file: two for every worker."""


def anonymous_file(size: int, portable: bool = False) -> int:
    """Return the descriptor of an unnamed file of `size` sparse bytes."""
    if hasattr(os, "memfd_create") and not portable:
        fd = os.memfd_create("raceway", os.MFD_CLOEXEC)
    else:  # macOS: an unlinked temporary file does the same, by way of the page cache
        with tempfile.TemporaryFile(prefix="raceway-") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class ControlFile:
    """A small file shared by all processes of an engine: a usage counter per process, then rows of release counts.

    Row 2i is written by worker i, for blocks of the driver; row 2i + 1 by the driver, for blocks of worker i.

    Args:
        fd: the file, or None to create it.
        worker: map only the two rows of this worker; None maps all rows.
    """

    _COUNTER_BYTES = NUM_ROWS * 8
    _ROW_BYTES = MAX_BLOCKS * 2

    def __init__(self, fd: int | None = None, worker: int | None = None) -> None:
        self.fd = anonymous_file(self._COUNTER_BYTES + NUM_ROWS * self._ROW_BYTES) if fd is None else fd
        self.bytes_used = np.frombuffer(mmap.mmap(self.fd, self._COUNTER_BYTES), np.uint64)
        """Bytes of shared memory in use, by process: index 0 is the driver, 1 + i is worker i."""
        first, count = (0, NUM_ROWS) if worker is None else (2 * worker, 2)
        rows = mmap.mmap(self.fd, count * self._ROW_BYTES, offset=self._COUNTER_BYTES + first * self._ROW_BYTES)
        self._rows = np.frombuffer(rows, np.uint16).reshape(count, MAX_BLOCKS)

    def row(self, index: int) -> np.ndarray[Any, Any]:
        """Return a row of release counts; index 0 is the first row that is mapped."""
        row: np.ndarray[Any, Any] = self._rows[index]
        return row

    def close(self) -> None:
        """Close the file and drop the mappings, each of which holds a descriptor too."""
        os.close(self.fd)
        self.bytes_used = np.zeros(NUM_ROWS, np.uint64)
        self._rows = np.zeros((0, 0), np.uint16)
