"""The reader's side of shared memory: maps another process's arena, and releases blocks that are no longer read."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any, ClassVar

import numpy as np

from raceway.engine.shared_memory.buffer_layout import aligned_size, split_buffers
from raceway.engine.shared_memory.control_file import MAX_BLOCKS


class ArenaReader:
    """Reads blocks of another process's arena as read-only arrays.

    Args:
        fd: the arena's file.
        releases: the row of release counts that this reader writes.
    """

    _all: ClassVar[weakref.WeakSet[ArenaReader]] = weakref.WeakSet()

    def __init__(self, fd: int, releases: np.ndarray[Any, Any]) -> None:
        self._all.add(self)
        self.fd = fd
        self._releases = releases
        self._map: mmap.mmap | None = None
        self._size = 0
        self._leases: dict[int, _Lease] = {}

    def read(self, index: int, offset: int, lengths: list[int]) -> list[Any]:
        """Return the buffers of a block. The block is released when the last view of any of them is freed."""
        lease = self._leases.get(index)
        data = lease() if lease is not None else None
        if lease is not None and data is not None:
            lease.arrivals += 1  # the block was sent again while views of it are alive
        else:
            total = aligned_size(lengths)
            if offset + total > self._size:
                self._size = os.fstat(self.fd).st_size
                self._map = mmap.mmap(self.fd, self._size, prot=mmap.PROT_READ)
            assert self._map is not None
            # Slices of `data` have `data` as their base: numpy stops following bases at an array whose own base is no
            # array. A lease on a slice would end while slices of that slice are still in use.
            data = np.frombuffer(self._map, np.uint8, total, offset)
            self._leases[index] = _Lease(data, self, index)
        return split_buffers(data, lengths)

    def close(self) -> None:
        """Close the file. Views that still exist stay valid, but their release is no longer reported."""
        os.close(self.fd)
        self._map = None
        self._stop_reporting()

    def _stop_reporting(self) -> None:
        self._releases = np.zeros(MAX_BLOCKS, np.uint16)

    @classmethod
    def after_fork(cls) -> None:
        """Stop reporting releases in a forked child: its parent may still read what the child frees."""
        for reader in cls._all:
            reader._stop_reporting()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ArenaReader.after_fork)


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """Releases a block when its array is freed. A subclass of `ref`, at half the cost of `weakref.finalize`."""

    __slots__ = ("arrivals", "index", "reader")

    def __new__(cls, array: object, reader: ArenaReader, index: int) -> _Lease:
        return super().__new__(cls, array, _release)

    def __init__(self, array: object, reader: ArenaReader, index: int) -> None:
        super().__init__(array, _release)  # type: ignore[call-arg]
        self.reader = reader
        self.index = index
        self.arrivals = 1


def _release(lease: _Lease) -> None:
    # Delete the lease before counting: once it is counted, the owner may send the block again, under a new lease.
    releases, index = lease.reader._releases, lease.index
    if lease.reader._leases.get(index) is lease:
        del lease.reader._leases[index]
    releases[index] = (int(releases[index]) + lease.arrivals) & 0xFFFF
