"""Shared memory between the driver and the actors that Ray runs on the driver's node, for results and stored values.

A value in Ray's object store takes several messages between four processes: for a few hundred kilobytes, a twentieth of
the time that it takes to collect them. A value in an arena takes none.

The files belong to the driver and have no names: an actor opens them through `/proc`, which works if both run as the
same user and in the same process namespace. If it does not work, or the memory is used up, values go through Ray's
object store.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from raceway.engine.shared_memory.arena import Arena, Pin
from raceway.engine.shared_memory.arena_reader import ArenaReader
from raceway.engine.shared_memory.control_file import NUM_ROWS, ControlFile, anonymous_file
from raceway.errors import SharedMemoryError

_MEMORY_FRACTION = 8  # use at most an eighth of the memory
_PAUSE_SECONDS = 1.0  # before another attempt to find room, because each searches the whole arena
Location = tuple[int, ...]
"""Where a value lies in an arena: index and offset of its block, and the lengths of its buffers."""
FileAddress = tuple[str, int, int]
"""Path by which another process opens a file, and the device and inode by which it checks that it is the right one."""


@dataclass(frozen=True)
class SharedMemoryOffer:
    """The files that the driver shares with an actor, and how the actor opens them."""

    index: int
    """Which rows of the control file belong to the actor."""
    budget: int
    control: FileAddress
    driver_arena: FileAddress
    actor_arena: FileAddress


class DriverEnd:
    """The driver's end of the memory that it shares with one actor."""

    accepted = False
    """Whether the actor could open the files."""

    def __init__(self, offer: SharedMemoryOffer, reader: ArenaReader, releases: np.ndarray[Any, Any]) -> None:
        self.offer = offer
        self.reader = reader
        self.releases = releases
        """The row in which the actor releases blocks of the driver's arena."""

    def read(self, location: Location) -> list[Any]:
        """Return the buffers of a result. Their memory is reused when the last view of them is gone."""
        return _read(self.reader, location)


class SharedValue:
    """A stored value in the driver's arena."""

    def __init__(self, arena: Arena, buffers: list[Any]) -> None:
        self._arena = arena
        self._block, self._lengths = arena.write(buffers)
        self._pin = Pin(self._block)

    def buffers(self) -> list[Any]:
        """Return the buffers, for the driver."""
        return self._arena.read(self._block, self._lengths)

    def location_for(self, end: DriverEnd) -> Location:
        """Return the location to send to an actor, and expect the actor to release it."""
        self._block.expect_release(end.releases)
        return self._block.index, self._block.offset, *self._lengths


class NodeMemory:
    """The driver's side: an arena for stored values, and an end for each actor on its node."""

    def __init__(self) -> None:
        self._control = ControlFile()
        self._free_indices = deque(range(NUM_ROWS // 2 - 1))
        self._ends: set[DriverEnd] = set()
        self._budget = _memory_bytes() // _MEMORY_FRACTION
        self._arena = Arena(self._control, 0, self._budget)
        self._pause = _PauseWhenFull()

    def connect(self) -> DriverEnd | None:
        """Return the driver's end for a new actor, or None if there is no room for one."""
        if not self._free_indices:
            return None
        index = self._free_indices.popleft()
        try:
            fd = anonymous_file(0)
        except OSError:  # too many open files
            self._free_indices.appendleft(index)
            return None
        offer = SharedMemoryOffer(index, self._budget, *map(_address, (self._control.fd, self._arena.fd, fd)))
        reader = ArenaReader(fd, self._control.row(2 * index + 1))
        end = DriverEnd(offer, reader, self._control.row(2 * index))
        self._ends.add(end)
        return end

    def store(self, buffers: list[Any]) -> SharedValue | None:
        """Store a value for the actors on this node; return None if there are none, or no room."""
        if self._pause.active or not any(end.accepted for end in self._ends):
            return None
        with self._pause:
            return SharedValue(self._arena, buffers)
        return None

    def disconnect(self, end: DriverEnd | None) -> None:
        """Release the end of an actor whose process is gone, if it had one. Results read from it stay valid."""
        if end not in self._ends:
            return
        self._ends.remove(end)
        end.reader.close()
        self._arena.remove_reader(end.releases)
        end.releases = np.empty(0, np.uint16)  # a row kept here would keep the control file open
        self._control.bytes_used[1 + end.offer.index] = 0
        self._free_indices.append(end.offer.index)

    def close(self) -> None:
        """Release everything."""
        for end in list(self._ends):
            self.disconnect(end)
        self._arena.close()
        self._control.close()


class ActorEnd:
    """The actor's end: writes results where the driver finds them, and reads the driver's stored values."""

    def __init__(self, offer: SharedMemoryOffer) -> None:
        files: list[int] = []
        try:
            for address in (offer.control, offer.driver_arena, offer.actor_arena):
                files.append(_reopen(address))
            self._control = ControlFile(files[0], offer.index)
        except OSError:
            for fd in files:
                os.close(fd)
            raise
        self._reader = ArenaReader(files[1], self._control.row(0))
        self._arena = Arena(self._control, 1 + offer.index, offer.budget, files[2])
        self._driver_releases = self._control.row(1)
        self._pause = _PauseWhenFull()

    def write(self, buffers: list[Any]) -> Location:
        """Copy buffers to where the driver can read them and return their location; empty if there is no room."""
        if self._pause.active:
            return ()
        with self._pause:
            block, lengths = self._arena.write(buffers)
            block.expect_release(self._driver_releases)
            return block.index, block.offset, *lengths
        return ()

    def read(self, location: Location) -> list[Any]:
        """Return the buffers of a value that the driver has stored."""
        return _read(self._reader, location)

    def close(self) -> None:
        """Close the files, and drop the row that would keep one of them open."""
        self._reader.close()
        self._arena.close()
        self._control.close()
        self._driver_releases = np.empty(0, np.uint16)


def open_actor_end(offer: SharedMemoryOffer) -> ActorEnd | None:
    """Return the actor's end, or None if its files cannot be opened from this process."""
    with contextlib.suppress(OSError):
        return ActorEnd(offer)
    return None


class _PauseWhenFull:
    """A context that is active for a second after its body found no room: each further attempt would take long."""

    def __init__(self) -> None:
        self._until = -math.inf

    @property
    def active(self) -> bool:
        return time.monotonic() < self._until

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, (SharedMemoryError, OSError)):
            return False
        self._until = time.monotonic() + _PAUSE_SECONDS
        return True


def _read(reader: ArenaReader, location: Location) -> list[Any]:
    return reader.read(location[0], location[1], list(location[2:]))


def _memory_bytes() -> int:
    """Return the memory of the machine, or the container's limit if that is lower."""
    num_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            num_bytes = min(num_bytes, int(file.read()))
    return num_bytes


def _address(fd: int) -> FileAddress:
    """Return the address of an open file of this process."""
    status = os.fstat(fd)
    return f"/proc/{os.getpid()}/fd/{fd}", status.st_dev, status.st_ino


def _reopen(address: FileAddress) -> int:
    path, *identity = address
    status = os.stat(path)  # before it is opened: in another process namespace that path may be any device
    if [status.st_dev, status.st_ino] != identity:
        raise FileNotFoundError(path)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    status = os.fstat(fd)
    if [status.st_dev, status.st_ino] != identity:
        os.close(fd)
        raise FileNotFoundError(path)
    return fd
