"""Shared memory for messages: one growing anonymous file a process, cut into slots that are used again.

The process that owns an `Arena` alone allocates in it; others map it read-only and look (`ArenaView`). A slot goes
back without a message: for every (reader, slot) there is a count of releases that only the reader writes, when the
last array that looks into the slot is gone. The owner knows how often it sent the slot and compares when it next
needs memory. The file has no name anywhere, so nothing is left behind however the processes end.

Written by hand because `multiprocessing.shared_memory` names its segments (a kill leaks them) and makes one for every
value, which costs more than copying a megabyte.
"""

from __future__ import annotations

import gc
import mmap
import os
import tempfile
import weakref
from collections import deque
from typing import Any, ClassVar

import numpy as np

from raceway.errors import SharedMemoryError

ALIGN = 64
NUM_SLOTS = 1 << 16
"""Slots an arena can have, so also the counts in a row."""
NUM_ROWS = 2048
"""Rows in one engine: two for every worker."""
_PAGE = 4096
_LOOKED_AT = 8  # used slots examined from either end for an allocation; bounds its cost however many are held


def anonymous_file(size: int, portable: bool = False) -> int:
    """Return the descriptor of a nameless file of `size` sparse bytes."""
    if hasattr(os, "memfd_create") and not portable:
        fd = os.memfd_create("raceway", os.MFD_CLOEXEC)
    else:  # macOS: an unlinked temporary file does the same, by way of the page cache
        with tempfile.TemporaryFile(prefix="raceway-") as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, size)
    return fd


class Control:
    """The engine's small shared file: a usage counter for every process, then rows of release counts.

    Row 2i is written by worker i, for the driver's slots; row 2i + 1 by the driver, for the slots of worker i.

    Args:
        fd: the file, or None to make it.
        worker: map the two rows of this worker only; None maps them all.
    """

    _COUNTERS = NUM_ROWS * 8
    _ROW = NUM_SLOTS * 2

    def __init__(self, fd: int | None = None, worker: int | None = None) -> None:
        self.fd = anonymous_file(self._COUNTERS + NUM_ROWS * self._ROW) if fd is None else fd
        self.used = np.frombuffer(mmap.mmap(self.fd, self._COUNTERS), np.uint64)
        first, count = (0, NUM_ROWS) if worker is None else (2 * worker, 2)
        rows = mmap.mmap(self.fd, count * self._ROW, offset=self._COUNTERS + first * self._ROW)
        self._rows = np.frombuffer(rows, np.uint16).reshape(count, NUM_SLOTS)

    def row(self, index: int) -> np.ndarray[Any, Any]:
        """Return one row of release counts, counted from the first row mapped."""
        row: np.ndarray[Any, Any] = self._rows[index]
        return row

    def close(self) -> None:
        """Let go of the file and of the mappings (each of which holds a descriptor of its own)."""
        os.close(self.fd)
        self.used = np.zeros(NUM_ROWS, np.uint64)
        self._rows = np.zeros((0, 0), np.uint16)


class Slot:
    """A piece of an arena that holds the buffers of one message, and the releases that are still to come."""

    __slots__ = ("__weakref__", "awaited", "index", "offset", "pins", "size")

    def __init__(self, index: int, offset: int, size: int) -> None:
        self.index = index
        self.offset = offset
        self.size = size
        self.pins: list[None] = []  # a count; a list because appending and popping are atomic
        self.awaited: list[tuple[np.ndarray[Any, Any], int]] = []

    def sent_to(self, row: np.ndarray[Any, Any]) -> None:
        """Note that the reader of `row` is about to get this slot once (more)."""
        for place, (reader, count) in enumerate(self.awaited):
            if reader is row:
                self.awaited[place] = (row, (count + 1) & 0xFFFF)
                return
        self.awaited.append((row, (int(row[self.index]) + 1) & 0xFFFF))

    def in_use(self) -> bool:
        if self.pins:
            return True
        for row, count in self.awaited:
            if row[self.index] != count:
                return True
        self.awaited.clear()
        return False


class Pin:
    """Keeps a slot from being used again while the owner may still send or read it."""

    __slots__ = ("slot",)

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        slot.pins.append(None)

    def release(self) -> None:
        """Do nothing: holding this method is holding the pin."""

    def __del__(self) -> None:
        self.slot.pins.pop()


class Arena:
    """The owner's side: copies buffers into slots.

    Args:
        fd: the anonymous file (empty, or not yet made).
        control: the engine's control file, for the usage counters.
        account: this process's place among the counters.
        budget: bytes that all processes of the engine may use together.
    """

    def __init__(self, control: Control, account: int, budget: int, fd: int | None = None) -> None:
        self.fd = anonymous_file(0) if fd is None else fd
        self._control = control
        self._account = account
        self._budget = budget
        self._map: mmap.mmap | None = None
        self._bytes: np.ndarray[Any, Any] = np.empty(0, np.uint8)
        self._end = 0
        self._num_slots = 0
        self._free: dict[int, list[Slot]] = {}
        self._busy: dict[int, deque[Slot]] = {}
        self._spare: list[int] = []  # indices of slots whose memory was given back,
        self._holes: list[tuple[int, int]] = []  # and the ranges that it had: (offset, size), in order

    def write(self, buffers: list[Any]) -> tuple[Slot, list[int]]:
        """Copy the buffers into one slot, each aligned; return it with their lengths."""
        lengths = [memoryview(buffer).nbytes for buffer in buffers]
        slot = self.allocate(extent(lengths))
        at = slot.offset
        target = self._bytes
        for buffer, length in zip(buffers, lengths, strict=True):
            target[at : at + length] = np.frombuffer(buffer, np.uint8)
            at += -(-length // ALIGN) * ALIGN
        return slot, lengths

    def read(self, slot: Slot, lengths: list[int]) -> list[Any]:
        """Return views of what was written, for the owner itself. They pin the slot as long as they live."""
        assert self._map is not None
        whole = np.frombuffer(self._map, np.uint8, extent(lengths), slot.offset)
        whole.flags.writeable = False
        weakref.finalize(whole, Pin(slot).release).atexit = False
        return _cut(whole, lengths)

    def forget_reader(self, row: np.ndarray[Any, Any]) -> None:
        """Wait no longer for the releases of a reader that is dead."""
        for busy in self._busy.values():
            for slot in busy:
                slot.awaited = [entry for entry in slot.awaited if entry[0] is not row]

    def allocate(self, size: int) -> Slot:
        """Return a slot of at least `size` bytes that nobody reads."""
        size = _class_of(size)
        free = self._free.setdefault(size, [])
        busy = self._busy.setdefault(size, deque())
        if not free:
            self._reclaim(free, busy, _LOOKED_AT)
        slot = free.pop() if free else self._carve(size, free, busy)
        busy.append(slot)
        return slot

    @staticmethod
    def _reclaim(free: list[Slot], busy: deque[Slot], most: int) -> None:
        """Move slots that are no longer read from `busy` to `free`: the newest (still in cache) and the oldest."""
        for _ in range(min(most, len(busy))):
            slot = busy.popleft()
            (busy if slot.in_use() else free).append(slot)
        for back in range(min(most, len(busy)), 0, -1):
            if not busy[-back].in_use():
                free.append(busy[-back])
                del busy[-back]

    def _carve(self, size: int, free: list[Slot], busy: deque[Slot]) -> Slot:
        used = int(self._control.used.sum())
        if used + size > self._budget:
            self._make_room()
            if free:
                return free.pop()
            used = int(self._control.used.sum())
            if used + size > self._budget:
                raise SharedMemoryError(
                    f"a message needs {size:,} bytes of shared memory, but {used:,} of the budget of {self._budget:,} "
                    "are in use. Drop results and references that are done with, or raise the engine's shared_memory=."
                )
        if not self._spare and self._num_slots == NUM_SLOTS:
            raise SharedMemoryError(
                f"{NUM_SLOTS:,} messages with arrays are alive at once. Drop results that are done with."
            )
        offset = self._place(size)
        index = self._spare.pop() if self._spare else self._num_slots
        self._num_slots = max(self._num_slots, index + 1)
        self._control.used[self._account] += np.uint64(size)
        return Slot(index, offset, size)

    def _make_room(self) -> None:
        """Find every slot that is free by now, and give back the memory of all of them but keep nothing cached."""
        gc.collect()
        for size, busy in self._busy.items():
            self._reclaim(self._free[size], busy, len(busy))
        if self._map is None:
            return
        for size, free in self._free.items():
            for slot in free:
                self._map.madvise(getattr(mmap, "MADV_REMOVE", mmap.MADV_DONTNEED), slot.offset, slot.size)
                self._control.used[self._account] -= np.uint64(size)
                self._spare.append(slot.index)
                self._holes.append((slot.offset, slot.size))
            free.clear()
        merged: list[tuple[int, int]] = []
        for offset, size in sorted(self._holes):
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self._holes = merged

    def _place(self, size: int) -> int:
        """Return the offset of `size` bytes that really are there: in a hole that is large enough, else at the end."""
        hole = next((place for place, (_, room) in enumerate(self._holes) if room >= size), None)
        offset = self._end if hole is None else self._holes[hole][0]
        end = offset + size
        if end > self._bytes.nbytes:
            total = max(end, 2 * self._bytes.nbytes, 1 << 20)
            os.ftruncate(self.fd, total)
            self._map = mmap.mmap(self.fd, total)
            self._bytes = np.frombuffer(self._map, np.uint8)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self.fd, offset, size)  # or the first touch would be a SIGBUS
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
        """Let go of the file. Views that are still about stay good."""
        os.close(self.fd)
        self._map = None
        self._bytes = np.empty(0, np.uint8)


class ArenaView:
    """A reader's side: maps the owner's file and lends out slots as read-only arrays."""

    _all: ClassVar[weakref.WeakSet[ArenaView]] = weakref.WeakSet()

    def __init__(self, fd: int, releases: np.ndarray[Any, Any]) -> None:
        self._all.add(self)
        self.fd = fd
        self._releases = releases
        self._map: mmap.mmap | None = None
        self._size = 0
        self._leases: dict[int, _Lease] = {}

    def read(self, index: int, offset: int, lengths: list[int]) -> list[Any]:
        """Return the buffers of a slot. It is given back when the last view of any of them is gone."""
        lease = self._leases.get(index)
        whole = lease() if lease is not None else None
        if lease is not None and whole is not None:
            lease.arrivals += 1  # the same slot, sent again while the last time is still in use
        else:
            total = extent(lengths)
            if offset + total > self._size:
                self._size = os.fstat(self.fd).st_size
                self._map = mmap.mmap(self.fd, self._size, prot=mmap.PROT_READ)
            assert self._map is not None
            # Arrays cut from `whole` keep `whole` as their base: numpy stops folding bases at an array whose own base
            # is no array. A lease on a slice instead would end while slices of it are still in use.
            whole = np.frombuffer(self._map, np.uint8, total, offset)
            self._leases[index] = _Lease(whole, self, index)
        return _cut(whole, lengths)

    def close(self) -> None:
        """Let go of the file. Views that are still about stay good, but are not reported to the owner any more."""
        os.close(self.fd)
        self._map = None
        self._fall_silent()

    def _fall_silent(self) -> None:
        self._releases = np.zeros(NUM_SLOTS, np.uint16)

    @classmethod
    def after_fork(cls) -> None:
        """In a child: what it lets go of, its parent may still read."""
        for view in cls._all:
            view._fall_silent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ArenaView.after_fork)


class _Lease(weakref.ref):  # type: ignore[type-arg]
    """Gives a slot back when its array dies. A subclass of ref, at half the cost of `weakref.finalize`."""

    __slots__ = ("arrivals", "index", "view")

    def __new__(cls, array: object, view: ArenaView, index: int) -> _Lease:
        return super().__new__(cls, array, _give_back)

    def __init__(self, array: object, view: ArenaView, index: int) -> None:
        super().__init__(array, _give_back)  # type: ignore[call-arg]
        self.view = view
        self.index = index
        self.arrivals = 1


def _give_back(lease: _Lease) -> None:
    # The lease must go before the count: with that the owner may send the slot again, under a new lease.
    releases, index = lease.view._releases, lease.index
    if lease.view._leases.get(index) is lease:
        del lease.view._leases[index]
    releases[index] = (int(releases[index]) + lease.arrivals) & 0xFFFF


def _cut(whole: np.ndarray[Any, Any], lengths: list[int]) -> list[Any]:
    buffers = []
    at = 0
    for length in lengths:
        buffers.append(whole[at : at + length])
        at += -(-length // ALIGN) * ALIGN
    return buffers


def extent(lengths: list[int]) -> int:
    """Return the bytes that buffers of these lengths take in a slot."""
    return sum(-(-length // ALIGN) * ALIGN for length in lengths)


def _class_of(size: int) -> int:
    """Round up to one of four sizes between two powers of two, whole pages.

    >>> _class_of(1), _class_of(40_000), _class_of(1_000_000)
    (32768, 40960, 1048576)
    """
    step = max(_PAGE, 1 << max(0, (size - 1).bit_length() - 3))
    return max(8 * _PAGE, -(-size // step) * step)
