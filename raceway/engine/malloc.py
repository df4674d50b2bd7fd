"""What a process does with memory that it has freed.

glibc gives large blocks back to the kernel as soon as they are free, and the next tensor of that size has all its pages
made and cleared anew. For a network that looks at images this is a tenth to a fifth of the time; how much depends on
what happens to lie at the end of the heap, so that of two workers that do the same one may be slower.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of glibc's malloc.h
_KEPT_BYTES = 512 << 20  # free at the end of the heap, at most
_ROOM_BYTES = 256 << 20  # of addresses, not of memory: blocks that fit in there are kept whatever their size
_BLOCK_BYTES = 32 << 20  # the most that glibc takes: larger ones that do not fit in there are given back
_USUAL_PAD_BYTES = 128 << 10


def keep_freed_memory() -> None:
    """Have this process keep what it frees for what it needs next, where the C library is one that can be told so.

    Who has told it something himself, by variables of the environment, has that.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        library = ctypes.CDLL(None)
        tell = library.mallopt
    except (OSError, TypeError, AttributeError):  # not glibc
        return
    tell(_MMAP_THRESHOLD, _BLOCK_BYTES)
    tell(_TRIM_THRESHOLD, _KEPT_BYTES)
    # Have the heap grow once, now; later, and for other threads, it grows as usual. Only what is touched takes memory.
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    tell(_TOP_PAD, _ROOM_BYTES)
    library.free(library.malloc(_BLOCK_BYTES - (1 << 20)))
    tell(_TOP_PAD, _USUAL_PAD_BYTES)
