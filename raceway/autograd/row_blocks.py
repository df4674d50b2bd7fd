"""Computing in blocks of rows, each on one thread.

torch splits every operation among threads, which wait for each other after each of them. Here a thread computes all
operations of a block, and threads wait once, after all blocks. The blocks follow from the size of the batch alone. What
a learner computes outside of blocks still depends, in its last bits, on the number of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def split_rows(num: int, max_rows: int) -> list[slice]:
    """Split rows evenly into as few blocks of at most `max_rows` as possible.

    >>> split_rows(10, 4)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    num_blocks = max(-(-num // max_rows), 1)
    return [slice(*edges) for edges in pairwise(num * index // num_blocks for index in range(num_blocks + 1))]


class BlockThreads:
    """Threads that compute blocks.

    Args:
        num: the number of threads; one needs no thread besides the calling one.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"num": self.num, "_pool": None}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute the blocks of this thread on these threads."""
        before, _active.threads = _active.threads, self
        try:
            yield
        finally:
            _active.threads = before

    def map(self, function: Callable[[slice], T], blocks: list[slice]) -> list[T]:
        """Return the results of a function for every block."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.num, thread_name_prefix="row-blocks", initializer=_use_one_thread)
        return list(self._pool.map(function, blocks))


class _ThreadLocal(threading.local):
    threads: BlockThreads | None = None


_active = _ThreadLocal()


def _use_one_thread() -> None:
    torch.get_num_threads()  # torch gives a thread its default number on first use, which would undo the next line
    torch.set_num_threads(1)


def run_blocks(function: Callable[[slice], T], blocks: list[slice]) -> list[T]:
    """Return the results of a function for every block, without gradients: on the active threads, if there are any."""
    threads = _active.threads
    if threads is not None and threads.num > 1:
        return threads.map(torch.no_grad()(function), blocks)
    with torch.no_grad():
        return list(map(function, blocks))
