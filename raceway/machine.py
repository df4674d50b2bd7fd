"""The machine and the process of a run: cores, compute threads, and time since the start."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import threadpoolctl
import torch
from threadpoolctl import threadpool_limits

from raceway.engine.malloc import keep_freed_memory


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_compute_settings() -> Iterator[None]:
    """Compute with one thread, as workers do, so that results are the same as on a worker.

    The limits of BLAS are those of the process: of several trainings at a time, the last one to end lifts them. Those
    of OpenMP are each thread's own, and end with its training. Freed memory is kept for reuse, which lasts beyond the
    context.
    """
    keep_freed_memory()
    thread = threading.get_ident()
    _single_thread.enter(thread)
    try:
        yield
    finally:
        _single_thread.leave(thread)


class _SingleThread:
    """Limits the process to one compute thread while any of its threads needs that."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_threads = 0
        self._limits: Any = None
        self._depths: Counter[int] = Counter()
        """How often each thread has entered and not left."""
        self._own_numbers: dict[int, int] = {}
        """The number of compute threads of each of them before."""

    def enter(self, thread: int) -> None:
        with self._lock:
            own = torch.get_num_threads()
            if not self._depths:
                self._num_threads, self._limits = own, threadpool_limits(1)
                _let_any_thread_set_limits()
            if thread not in self._depths:
                # A thread that has not computed before starts with the limit that holds now.
                self._own_numbers[thread] = self._num_threads if own == 1 else own
            self._depths[thread] += 1
            torch.set_num_threads(1)  # OpenMP has a number of threads for each thread that computes

    def leave(self, thread: int) -> None:
        with self._lock:
            self._depths[thread] -= 1
            if self._depths[thread]:
                return
            del self._depths[thread]
            own = self._own_numbers.pop(thread)
            if not self._depths:
                self._limits.restore_original_limits()
                _let_any_thread_set_limits()
                torch.set_num_threads(self._num_threads)
            if thread == threading.get_ident() and torch.get_num_threads() != own:
                threadpool_limits(own, user_api="openmp")  # torch would lift the limits of the other threads too


_single_thread = _SingleThread()


def _let_any_thread_set_limits() -> None:
    """Undo that the thread that limited OpenBLAS is, while it lives, the only one whose limits have an effect."""
    clear = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if clear is not None:  # older versions have no such rule
        clear(force=True)


def seconds_since_process_start() -> float:
    """Return the seconds since this process started, imports included."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return time.perf_counter() - _IMPORTED_AT


_IMPORTED_AT = time.perf_counter()
