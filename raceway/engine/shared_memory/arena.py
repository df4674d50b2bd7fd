"""The owner's side of shared memory: allocates blocks, and reuses those that every reader has released."""

from __future__ import annotations

import gc
import mmap
import os
import weakref
from collections import deque
from typing import Any

import numpy as np

from raceway.engine.shared_memory.buffer_layout import ALIGN_BYTES, aligned_size, split_buffers
from raceway.engine.shared_memory.control_file import MAX_BLOCKS, ControlFile, anonymous_file
from raceway.errors import SharedMemoryError

_PAGE_BYTES = 4096
_NUM_EXAMINED = 8  # blocks in use checked from either end per allocation: bounds its cost however many are held


class ArenaBlock:
    """A range of an arena that holds the buffers of one message, and the releases still expected from its readers."""

    __slots__ = ("__weakref__", "expected_releases", "index", "offset", "pins", "size")

    def __init__(self, index: int, offset: int, size: int) -> None:
        self.index = index
        self.offset = offset
        self.size = size
        self.pins: list[None] = []  # a count; a list because appending and popping are atomic
        self.expected_releases: list[tuple[np.ndarray[Any, Any], int]] = []

    def expect_release(self, row: np.ndarray[Any, Any]) -> None:
        """Expect one more release from the reader of `row`. Call it before each time the block is sent."""
        for position, (reader, count) in enumerate(self.expected_releases):
            if reader is row:
                self.expected_releases[position] = (row, (count + 1) & 0xFFFF)
                return
        self.expected_releases.append((row, (int(row[self.index]) + 1) & 0xFFFF))

    def in_use(self) -> bool:
        """Whether the block is pinned, or a reader has not released it."""
        if self.pins:
            return True
        for row, count in self.expected_releases:
            if row[self.index] != count:
                return True
        self.expected_releases.clear()
        return False


class Pin:
    """Keeps a block from being reused while the owner may still send or read it."""

    __slots__ = ("block",)

    def __init__(self, block: ArenaBlock) -> None:
        self.block = block
        block.pins.append(None)

    def release(self) -> None:
        """Do nothing: a reference to this method keeps the pin alive."""

    def __del__(self) -> None:
        self.block.pins.pop()


class Arena:
    """Copies buffers into blocks of an anonymous file.

    Args:
        control: the engine's control file, for the usage counters.
        process_index: this process's index among the counters.
        budget: bytes that all processes of the engine may use together.
        fd: the file, which is empty, or None to create it.
    """

    def __init__(self, control: ControlFile, process_index: int, budget: int, fd: int | None = None) -> None:
        self.fd = anonymous_file(0) if fd is None else fd
        self._control = control
        self._process_index = process_index
        self._budget = budget
        self._map: mmap.mmap | None = None
        self._bytes: np.ndarray[Any, Any] = np.empty(0, np.uint8)
        self._end = 0
        self._num_blocks = 0
        self._free: dict[int, list[ArenaBlock]] = {}  # by size class, like `_busy`
        self._busy: dict[int, deque[ArenaBlock]] = {}
        self._free_indices: list[int] = []  # of blocks whose memory was returned to the system,
        self._holes: list[tuple[int, int]] = []  # and the ranges they had: (offset, size), in order

    def write(self, buffers: list[Any]) -> tuple[ArenaBlock, list[int]]:
        """Copy buffers into one block, each aligned; return the block and the lengths of the buffers."""
        lengths = [memoryview(buffer).nbytes for buffer in buffers]
        block = self.allocate(aligned_size(lengths))
        start = block.offset
        target = self._bytes
        for buffer, length in zip(buffers, lengths, strict=True):
            target[start : start + length] = np.frombuffer(buffer, np.uint8)
            start += -(-length // ALIGN_BYTES) * ALIGN_BYTES
        return block, lengths

    def read(self, block: ArenaBlock, lengths: list[int]) -> list[Any]:
        """Return views of the buffers in a block, for the owner itself. They pin the block as long as they live."""
        assert self._map is not None
        data = np.frombuffer(self._map, np.uint8, aligned_size(lengths), block.offset)
        data.flags.writeable = False
        weakref.finalize(data, Pin(block).release).atexit = False
        return split_buffers(data, lengths)

    def remove_reader(self, row: np.ndarray[Any, Any]) -> None:
        """Expect no more releases from a reader that is dead."""
        for busy in self._busy.values():
            for block in busy:
                block.expected_releases = [entry for entry in block.expected_releases if entry[0] is not row]

    def allocate(self, size: int) -> ArenaBlock:
        """Return a block of at least `size` bytes that is not in use."""
        size = _size_class(size)
        free = self._free.setdefault(size, [])
        busy = self._busy.setdefault(size, deque())
        if not free:
            self._reclaim(free, busy, _NUM_EXAMINED)
        block = free.pop() if free else self._create_block(size, free)
        busy.append(block)
        return block

    @staticmethod
    def _reclaim(free: list[ArenaBlock], busy: deque[ArenaBlock], count: int) -> None:
        """Move released blocks from `busy` to `free`: of the `count` newest (still in cache) and the `count` oldest."""
        for _ in range(min(count, len(busy))):
            block = busy.popleft()
            (busy if block.in_use() else free).append(block)
        for back in range(min(count, len(busy)), 0, -1):
            if not busy[-back].in_use():
                free.append(busy[-back])
                del busy[-back]

    def _create_block(self, size: int, free: list[ArenaBlock]) -> ArenaBlock:
        bytes_used = int(self._control.bytes_used.sum())
        if bytes_used + size > self._budget:
            self._return_free_memory()
            if free:
                return free.pop()
            bytes_used = int(self._control.bytes_used.sum())
            if bytes_used + size > self._budget:
                raise SharedMemoryError(
                    f"a message needs {size:,} bytes of shared memory, but {bytes_used:,} of the budget of "
                    f"{self._budget:,} are in use. Drop results and references that are no longer needed, or raise the "
                    "engine's shared_memory=."
                )
        if not self._free_indices and self._num_blocks == MAX_BLOCKS:
            raise SharedMemoryError(
                f"{MAX_BLOCKS:,} messages with arrays are alive at once. Drop results that are no longer needed."
            )
        offset = self._reserve(size)
        index = self._free_indices.pop() if self._free_indices else self._num_blocks
        self._num_blocks = max(self._num_blocks, index + 1)
        self._control.bytes_used[self._process_index] += np.uint64(size)
        return ArenaBlock(index, offset, size)

    def _return_free_memory(self) -> None:
        """Find every block that is not in use, and return the memory of all of them to the system."""
        gc.collect()
        for size, busy in self._busy.items():
            self._reclaim(self._free[size], busy, len(busy))
        if self._map is None:
            return
        for size, free in self._free.items():
            for block in free:
                self._map.madvise(getattr(mmap, "MADV_REMOVE", mmap.MADV_DONTNEED), block.offset, block.size)
                self._control.bytes_used[self._process_index] -= np.uint64(size)
                self._free_indices.append(block.index)
                self._holes.append((block.offset, block.size))
            free.clear()
        merged: list[tuple[int, int]] = []
        for offset, size in sorted(self._holes):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self._holes = merged

    def _reserve(self, size: int) -> int:
        """Reserve `size` bytes, in a hole that is large enough or else at the end of the file; return their offset."""
        hole = next((position for position, (_, room) in enumerate(self._holes) if room >= size), None)
        offset = self._end if hole is None else self._holes[hole][0]
        end = offset + size
        if end > self._bytes.nbytes:
            total = max(end, 2 * self._bytes.nbytes, 1 << 20)
            os.ftruncate(self.fd, total)
            self._map = mmap.mmap(self.fd, total)
            self._bytes = np.frombuffer(self._map, np.uint8)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self.fd, offset, size)  # without it, the first write could be a SIGBUS
            except OSError as error:
                raise SharedMemoryError(f"the machine has no {size:,} bytes left for shared memory: {error}") from error
        if hole is None:
            self._end = end
        else:
            start, room = self._holes.pop(hole)
            if room > size:
                self._holes.insert(hole, (start + size, room - size))
        return offset

    def close(self) -> None:
        """Close the file. Views that still exist stay valid."""
        os.close(self.fd)
        self._map = None
        self._bytes = np.empty(0, np.uint8)


def _size_class(size: int) -> int:
    """Round up to one of four sizes between two powers of two, in whole pages.

    >>> _size_class(1), _size_class(40_000), _size_class(1_000_000)
    (32768, 40960, 1048576)
    """
    step = max(_PAGE_BYTES, 1 << max(0, (size - 1).bit_length() - 3))
    return max(8 * _PAGE_BYTES, -(-size // step) * step)
