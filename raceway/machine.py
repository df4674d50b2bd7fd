"""The machine and the process of a run: cores, compute threads, and time since the start."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from raceway.engine.malloc import keep_freed_memory


def num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def worker_compute_settings() -> Iterator[None]:
    """Compute with one thread, as workers do, so that results are the same as on a worker.

    Freed memory is kept for reuse, which lasts beyond the context.
    """
    keep_freed_memory()
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(num_threads)


def seconds_since_process_start() -> float:
    """Return the seconds since this process started, imports included."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # not Linux
        return time.perf_counter() - _IMPORTED_AT


_IMPORTED_AT = time.perf_counter()
