"""Shared memory for results of actors that Ray runs on the driver's own machine.

A value in Ray's object store takes several messages between four processes, for a few hundred kilobytes a tenth of the
time that it takes to play them. What lies in an arena instead takes none.

The files are the driver's, and have no names: an actor opens them through `/proc`, which works where both belong to the
same user and see the same processes. Where it does not, and where the memory is used up, Ray's object store serves.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import dataclass
from typing import Any

from raceway.engine._arena import NUM_ROWS, Arena, ArenaView, Control, anonymous_file
from raceway.errors import SharedMemoryError

_SHARE = 8  # of the machine's memory, the part that may be used
Lent = tuple[int, ...]
"""Where a result lies: index and offset of its slot, and the lengths of its buffers."""


@dataclass(frozen=True)
class Offer:
    """What an actor must know to open its files."""

    place: int
    budget: int
    control: tuple[str, int, int]
    arena: tuple[str, int, int]


class Lane:
    """The driver's end of what it shares with one actor."""

    def __init__(self, place: int, view: ArenaView, offer: Offer) -> None:
        self.place, self.view, self.offer = place, view, offer

    def read(self, lent: Lent) -> list[Any]:
        """Return the buffers of a result. Their memory is used again when the last view of them is gone."""
        return self.view.read(lent[0], lent[1], list(lent[2:]))


class Nearby:
    """The driver's side: one lane for each actor that is near."""

    def __init__(self) -> None:
        self._control = Control()
        self._places = deque(range(NUM_ROWS // 2 - 1))
        self._lanes: set[Lane] = set()
        self._budget = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _SHARE

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
        offer = Offer(place, self._budget, _address(self._control.fd), _address(fd))
        lane = Lane(place, ArenaView(fd, self._control.row(2 * place + 1)), offer)
        self._lanes.add(lane)
        return lane

    def close(self, lane: Lane | None) -> None:
        """Let go of the lane of an actor whose process is gone, if it had one. What was read from it stays good."""
        if lane not in self._lanes:
            return
        self._lanes.remove(lane)
        lane.view.close()
        self._control.used[1 + lane.place] = 0
        self._places.append(lane.place)

    def end(self) -> None:
        """Let go of everything."""
        for lane in list(self._lanes):
            self.close(lane)
        self._control.close()


class Lender:
    """The actor's side: puts results where the driver finds them."""

    def __init__(self, offer: Offer) -> None:
        control = _reopened(offer.control)
        try:
            arena = _reopened(offer.arena)
        except OSError:
            os.close(control)
            raise
        self._control = Control(control, offer.place)
        self._arena = Arena(self._control, 1 + offer.place, offer.budget, arena)
        self._row = self._control.row(1)

    def lend(self, buffers: list[Any]) -> Lent:
        """Copy buffers to where the driver will look, and return where that is; nothing if there is no room."""
        try:
            slot, lengths = self._arena.write(buffers)
        except SharedMemoryError:
            return ()
        slot.sent_to(self._row)
        return slot.index, slot.offset, *lengths

    def close(self) -> None:
        """Let go of the files."""
        self._arena.close()
        self._control.close()
        self._row = self._row[:0].copy()  # or it would keep the control file open


def lender_of(offer: Offer) -> Lender | None:
    """Return the actor's side of a lane, if its files can be opened from here."""
    with contextlib.suppress(OSError):
        return Lender(offer)
    return None


def _address(fd: int) -> tuple[str, int, int]:
    """Return by what another process finds an open file of this one, and knows that it is the right one."""
    about = os.fstat(fd)
    return f"/proc/{os.getpid()}/fd/{fd}", about.st_dev, about.st_ino


def _reopened(address: tuple[str, int, int]) -> int:
    path, *wanted = address
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    about = os.fstat(fd)
    if [about.st_dev, about.st_ino] != wanted:
        os.close(fd)
        raise FileNotFoundError(path)
    return fd
