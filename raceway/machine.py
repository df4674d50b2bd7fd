"""What a run knows of the machine and the process it is in."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from raceway.engine.malloc import keep_freed_memory


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def as_in_a_worker() -> Iterator[None]:
    """Compute in this process as workers do, who have one thread: what is played here must be what they would play.

    Memory that is freed is kept, also afterwards.
    """
    keep_freed_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def since_start() -> float:
    """Return the seconds since this process began, imports included."""
    try:
        with open("/proc/self/stat", encoding="ascii") as stat:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):  # no Linux
        return time.perf_counter() - _IMPORTED


_IMPORTED = time.perf_counter()
