"""Importing large packages without garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_OBJECTS = 20_000


@contextmanager
def fast_imports(*, permanent: bool = False) -> Iterator[None]:
    """Pause the cyclic garbage collector during imports.

    torch and what it imports create a million objects that live as long as the process. The collector passes over them
    again and again while their number grows, which took a third of the CPU time of a start.

    Args:
        permanent: exempt all objects of the process from later passes, too. Only for processes that start here, since
            it includes objects of the caller, which would not be collected if they became garbage.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if permanent:
            gc.freeze()
        elif gc.get_count()[0] > _MANY_OBJECTS:
            gc.collect()  # once now, rather than several times in what follows
        if was_enabled:
            gc.enable()
