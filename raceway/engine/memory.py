"""What a process does with memory that it has freed.

glibc gives large blocks back to the kernel as soon as they are free, and the next tensor of that size has all its pages
made and cleared anew. For a network that looks at images this is a tenth to a fifth of the time; how much depends on
what happens to lie at the end of the heap, so that of two workers that do the same one may be slower.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # names of glibc's malloc.h
_KEPT_BYTES = 512 << 20  # free at the end of the heap, at most
_GROWTH_BYTES = 256 << 20  # of addresses, not of memory: blocks that come from there are kept whatever their size
_BLOCK_BYTES = 32 << 20  # the most that glibc takes: larger ones that do not fit in there are given back


def keep_freed_memory() -> None:
    """Have this process keep what it frees for what it needs next, where the C library is one that can be told so."""
    try:
        library = ctypes.CDLL(None)
        tell = library.mallopt
    except (OSError, TypeError, AttributeError):  # not glibc
        return
    tell(_MMAP_THRESHOLD, _BLOCK_BYTES)
    tell(_TRIM_THRESHOLD, _KEPT_BYTES)
    tell(_TOP_PAD, _GROWTH_BYTES)
    # So that the heap grows now. Not touched, so it takes no memory.
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    library.free(library.malloc(_BLOCK_BYTES - (1 << 20)))
