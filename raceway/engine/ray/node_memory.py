"""Shared memory between the driver and actors that Ray runs on its own machine, for results and stored values.

A value in Ray's object store takes several messages between four processes: for a few hundred kilobytes, a twentieth of
the time that it takes to play them. What lies in an arena instead takes none.

The files are the driver's, and have no names: an actor opens them through `/proc`, which works where both belong to the
same user and see the same processes. Where it does not, and where the memory is used up, Ray's object store serves.
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

from raceway.engine._shared_memory import NUM_ROWS, Arena, ArenaView, Control, Pin, anonymous_file
from raceway.errors import SharedMemoryError

_SHARE = 8  # of the memory, the part that may be used
_PAUSE_SECONDS = 1.0  # without another try to find room; each one looks through everything
Lent = tuple[int, ...]
"""Where a value lies: index and offset of its slot, and the lengths of its buffers."""


@dataclass(frozen=True)
class Offer:
    """What an actor must know to open its files."""

    place: int
    budget: int
    control: tuple[str, int, int]
    drivers: tuple[str, int, int]
    arena: tuple[str, int, int]


class Lane:
    """The driver's end of what it shares with one actor."""

    accepted = False
    """Whether the actor could open the files."""

    def __init__(self, offer: Offer, view: ArenaView, releases: np.ndarray[Any, Any]) -> None:
        self.offer, self.view, self.releases = offer, view, releases

    def read(self, lent: Lent) -> list[Any]:
        """Return the buffers of a result. Their memory is used again when the last view of them is gone."""
        return _read(self.view, lent)


class Shelf:
    """A stored value in the driver's arena."""

    def __init__(self, arena: Arena, buffers: list[Any]) -> None:
        self._arena = arena
        self._slot, self._lengths = arena.write(buffers)
        self._pin = Pin(self._slot)

    def buffers(self) -> list[Any]:
        """Return what it is made of, for the driver."""
        return self._arena.read(self._slot, self._lengths)

    def lend(self, lane: Lane) -> Lent:
        """Return where an actor finds it, which is about to be told so."""
        self._slot.sent_to(lane.releases)
        return self._slot.index, self._slot.offset, *self._lengths


class Nearby:
    """The driver's side: one lane for each actor that is near, and what is stored for them."""

    def __init__(self) -> None:
        self._control = Control()
        self._places = deque(range(NUM_ROWS // 2 - 1))
        self._lanes: set[Lane] = set()
        self._budget = _memory() // _SHARE
        self._arena = Arena(self._control, 0, self._budget)
        self._pause = _Pause()

    def open(self) -> Lane | None:
        """Return a new lane, if there is room for one."""
        if not self._places:
            return None
        place = self._places.popleft()
        try:
            fd = anonymous_file(0)
        except OSError:  # too many open files
            self._places.appendleft(place)
            return None
        offer = Offer(place, self._budget, *map(_address, (self._control.fd, self._arena.fd, fd)))
        lane = Lane(offer, ArenaView(fd, self._control.row(2 * place + 1)), self._control.row(2 * place))
        self._lanes.add(lane)
        return lane

    def keep(self, buffers: list[Any]) -> Shelf | None:
        """Store a value where actors that are near can read it, if there are any, and room."""
        if self._pause.on or not any(lane.accepted for lane in self._lanes):
            return None
        with self._pause:
            return Shelf(self._arena, buffers)
        return None

    def close(self, lane: Lane | None) -> None:
        """Let go of the lane of an actor whose process is gone, if it had one. What was read from it stays good."""
        if lane not in self._lanes:
            return
        self._lanes.remove(lane)
        lane.view.close()
        self._arena.forget_reader(lane.releases)
        lane.releases = np.empty(0, np.uint16)  # a row kept here would keep the control file open
        self._control.used[1 + lane.offer.place] = 0
        self._places.append(lane.offer.place)

    def end(self) -> None:
        """Let go of everything."""
        for lane in list(self._lanes):
            self.close(lane)
        self._arena.close()
        self._control.close()


class Neighbour:
    """The actor's end of a lane: leaves results where the driver finds them, and reads what that has stored."""

    def __init__(self, offer: Offer) -> None:
        files: list[int] = []
        try:
            for address in (offer.control, offer.drivers, offer.arena):
                files.append(_reopened(address))
            self._control = Control(files[0], offer.place)
        except OSError:
            for fd in files:
                os.close(fd)
            raise
        self._view = ArenaView(files[1], self._control.row(0))
        self._arena = Arena(self._control, 1 + offer.place, offer.budget, files[2])
        self._row = self._control.row(1)
        self._pause = _Pause()

    def lend(self, buffers: list[Any]) -> Lent:
        """Copy buffers to where the driver will look, and return where that is; nothing if there is no room."""
        if self._pause.on:
            return ()
        with self._pause:
            slot, lengths = self._arena.write(buffers)
            slot.sent_to(self._row)
            return slot.index, slot.offset, *lengths
        return ()

    def read(self, lent: Lent) -> list[Any]:
        """Return the buffers of what the driver has stored."""
        return _read(self._view, lent)

    def close(self) -> None:
        """Let go of the files, and of the rows that would keep one of them open."""
        self._view.close()
        self._arena.close()
        self._control.close()
        self._row = np.empty(0, np.uint16)


def neighbour_of(offer: Offer) -> Neighbour | None:
    """Return the actor's end of a lane, if its files can be opened from here."""
    with contextlib.suppress(OSError):
        return Neighbour(offer)
    return None


class _Pause:
    """Goes on when something in it finds no room, for a while: to try again each time would take long each time."""

    def __init__(self) -> None:
        self._until = -math.inf

    @property
    def on(self) -> bool:
        return time.monotonic() < self._until

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if not isinstance(error, (SharedMemoryError, OSError)):
            return False
        self._until = time.monotonic() + _PAUSE_SECONDS
        return True


def _read(view: ArenaView, lent: Lent) -> list[Any]:
    return view.read(lent[0], lent[1], list(lent[2:]))


def _memory() -> int:
    """Return how many bytes of memory there are: the machine's, or what the container may use."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            found = min(found, int(file.read()))
    return found


def _address(fd: int) -> tuple[str, int, int]:
    """Return by what another process finds an open file of this one, and knows that it is the right one."""
    about = os.fstat(fd)
    return f"/proc/{os.getpid()}/fd/{fd}", about.st_dev, about.st_ino


def _reopened(address: tuple[str, int, int]) -> int:
    path, *wanted = address
    about = os.stat(path)  # before it is opened: elsewhere that may be any device
    if [about.st_dev, about.st_ino] != wanted:
        raise FileNotFoundError(path)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)
    about = os.fstat(fd)
    if [about.st_dev, about.st_ino] != wanted:
        os.close(fd)
        raise FileNotFoundError(path)
    return fd
