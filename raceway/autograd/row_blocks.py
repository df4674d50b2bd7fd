"""Computing in blocks of rows, each on one thread.

torch splits every operation among threads, which wait for each other after each of them. Here a thread computes all
operations of a block, and threads wait once, after all blocks. The blocks follow from the size of the batch alone. What
a learner computes outside of blocks still depends, in its last bits, on the number of threads.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


def split_rows(num: int, max_rows: int) -> list[slice]:
    """Split rows evenly into as few blocks of at most `max_rows` as possible.

    >>> split_rows(10, 4)
    [slice(0, 3, None), slice(3, 6, None), slice(6, 10, None)]
    """
    num_blocks = max(-(-num // max_rows), 1)
    return [slice(*edges) for edges in pairwise(num * index // num_blocks for index in range(num_blocks + 1))]


class BlockThreads:
    """Threads that compute blocks: the calling one, and others that wait for work.

    The executors of the standard library take twice as long to hand over a block, and a gradient step of small networks
    hands over ten.

    Args:
        num: the number of threads; one needs no thread besides the calling one.
    """

    def __init__(self, num: int) -> None:
        self.num = num
        self._jobs: SimpleQueue[_Job[Any, Any] | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"num": self.num, "_jobs": None}

    @contextmanager
    def active(self) -> Iterator[None]:
        """Compute the blocks of this thread on these threads."""
        before, _active.threads = _active.threads, self
        try:
            yield
        finally:
            _active.threads = before

    def map(self, function: Callable[[S], T], blocks: Sequence[S]) -> list[T]:
        """Return the results of a function for every block, each computed by torch with one thread."""
        if self._jobs is None:
            self._jobs = SimpleQueue()
            for number in range(1, self.num):
                thread = threading.Thread(target=_help, args=(self._jobs,), name=f"row-blocks-{number}", daemon=True)
                thread.start()
                weakref.finalize(self, self._jobs.put, None)
        job = _Job(function, blocks)
        for _ in range(min(self.num, len(blocks)) - 1):
            self._jobs.put(job)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            job.work()
        finally:
            torch.set_num_threads(before)
        return job.results()


class _Job(Generic[S, T]):
    """A function and the blocks that it is to be computed for, by whichever thread is free."""

    def __init__(self, function: Callable[[S], T], blocks: Sequence[S]) -> None:
        self.function = function
        self._waiting = deque(enumerate(blocks))
        self._finished: SimpleQueue[tuple[int, T | None, BaseException | None]] = SimpleQueue()
        self._num = len(blocks)

    def work(self) -> None:
        """Compute blocks until none is waiting."""
        while True:
            try:
                index, block = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._finished.put((index, self.function(block), None))
            except BaseException as error:
                self._finished.put((index, None, error))

    def results(self) -> list[T]:
        """Wait for all blocks, and return their results in order. Raise the error of the first that failed."""
        finished = sorted((self._finished.get() for _ in range(self._num)), key=lambda entry: entry[0])
        for _, _, error in finished:
            if error is not None:
                raise error
        return [result for _, result, _ in finished]  # type: ignore[misc]


def _help(jobs: SimpleQueue[_Job[Any, Any] | None]) -> None:
    torch.get_num_threads()  # torch gives a thread its default number on first use, which would undo the next line
    torch.set_num_threads(1)
    while (job := jobs.get()) is not None:
        job.work()
        del job  # its arrays, while there is nothing to do


class _ThreadLocal(threading.local):
    threads: BlockThreads | None = None


_active = _ThreadLocal()


def run_parallel(function: Callable[[S], T], blocks: Sequence[S]) -> list[T]:
    """Return the results of a function for every block: on the active threads, if there are any."""
    threads = _active.threads
    if threads is not None and threads.num > 1 and len(blocks) > 1:
        return threads.map(function, blocks)
    return [function(block) for block in blocks]


def run_blocks(function: Callable[[slice], T], blocks: list[slice]) -> list[T]:
    """Do the same for a function that uses torch, without gradients."""

    def without_gradients(block: slice) -> T:
        with torch.no_grad():
            return function(block)

    return run_parallel(without_gradients, blocks)
