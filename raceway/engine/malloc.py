"""Keep memory that the process has freed, instead of returning it to the kernel.

glibc returns large blocks to the kernel as soon as they are freed, and the pages of the next tensor of that size must
be allocated and cleared again. For a network with image observations that takes a tenth to a fifth of its time. How
much depends on the blocks at the end of the heap, so of two workers that do the same work one may be slower.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # constants of glibc's malloc.h
_MAX_KEPT_BYTES = 512 << 20  # free memory at the end of the heap
_HEAP_BYTES = 256 << 20  # of addresses, not of memory: blocks that fit in the heap are kept whatever their size
_MAX_BLOCK_BYTES = 32 << 20  # the most that glibc accepts: larger blocks that do not fit in the heap are returned
_DEFAULT_PAD_BYTES = 128 << 10


def keep_freed_memory() -> None:
    """Make this process keep freed memory for reuse, if the C library is glibc.

    Settings of the user in environment variables take precedence.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        library = ctypes.CDLL(None)
        mallopt = library.mallopt
    except (OSError, TypeError, AttributeError):  # not glibc
        return
    mallopt(_MMAP_THRESHOLD, _MAX_BLOCK_BYTES)
    mallopt(_TRIM_THRESHOLD, _MAX_KEPT_BYTES)
    # Make the heap grow once, now; later, and for other threads, it grows as usual. Only pages in use take memory.
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.restype, library.free.argtypes = None, [ctypes.c_void_p]
    mallopt(_TOP_PAD, _HEAP_BYTES)
    library.free(library.malloc(_MAX_BLOCK_BYTES - (1 << 20)))
    mallopt(_TOP_PAD, _DEFAULT_PAD_BYTES)
