"""The switch of the fast paths: acting and gradients of plain networks in numpy, and Adam on one vector.

They compute what torch computes, to float32 rounding, on the CPU only. `RACEWAY_FAST_PATHS=0` in the environment of a
process and its workers leaves everything to torch, to find out whether an unexpected result comes from them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "RACEWAY_FAST_PATHS"
_enabled = os.environ.get(VARIABLE, "1") != "0"


class _ThreadLocal(threading.local):
    without = False


_active = _ThreadLocal()


def fast_paths_enabled() -> bool:
    """Whether the fast paths are used where they can be."""
    return _enabled and not _active.without


@contextmanager
def use_fast_paths(enabled: bool) -> Iterator[None]:
    """Switch the fast paths of this process on or off for a while."""
    global _enabled
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before


@contextmanager
def without_fast_paths() -> Iterator[None]:
    """Leave everything that this thread computes to torch for a while."""
    before, _active.without = _active.without, True
    try:
        yield
    finally:
        _active.without = before
