"""Reference counting across processes, for values, objects and futures that the driver keeps.

A `Handle` refers to something in the driver (a stored value, an object, a future). Python counts the handles within one
process; this module counts the processes. Every message that carries a handle to a worker is counted where it is sent
and where it arrives. A worker that has dropped its last copy reports how many arrivals it has counted; if that is fewer
than were sent, another message is still on its way and the reference stays alive.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from raceway.engine import _codec
from raceway.errors import ForeignReference

_CACHE_SECONDS = 30.0  # for which a worker keeps the cache entry of a handle that it has dropped

_tables: dict[str, HandleTable] = {}
"""The tables of this process, by the uid of their engine."""


class Handle:
    """A counted reference. Equal handles refer to the same thing, in every process."""

    __slots__ = ("__weakref__", "id", "table")

    def __init__(self, table: HandleTable, id: int) -> None:
        self.id = id
        self.table = table
        table.add(id)

    def __del__(self) -> None:
        # May run at any time, in any thread and while any lock is held: so only record it, atomically.
        self.table.dropped.append(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id and other.table.uid == self.table.uid

    def __hash__(self) -> int:
        return hash((self.table.uid, self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.table.uid}>"

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: object) -> Handle:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        _codec.register_handle(self)
        return rebuild_handle, (type(self), self.table.uid, self.id)


def rebuild_handle(cls: type[Handle], uid: str, id: int) -> Handle:
    """Return the handle that was pickled, for the table that this process has of its engine."""
    try:
        table = _tables[uid]
    except KeyError:
        raise ForeignReference(
            f"reference {id} belongs to the run {uid!r}, which this process is not a part of"
        ) from None
    return cls(table, id)


class HandleTable:
    """The handles of one engine in one process, with the number of copies of each."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.dropped: deque[int] = deque()
        """Ids of handles that were garbage-collected since the last sweep."""
        self.read: Callable[[int], Any]
        """Reads a stored value by its id; set by the engine."""
        self.cache: dict[int, Any] = {}
        """What this process has cached for a handle, by the handle's id."""
        self.cached_handles: dict[int, int] = {}
        """Ids of handles that have a cache entry, by the id of the stored value that the entry was read from."""
        self._num_copies: dict[int, int] = {}
        self._lock = threading.Lock()  # any thread may decode values, which creates handles
        _tables[uid] = self

    def add(self, id: int) -> None:
        """Count one more copy of a handle in this process."""
        with self._lock:
            self._num_copies[id] = self._num_copies.get(id, 0) + 1

    def sweep(self) -> None:
        """Subtract the copies that were dropped since the last sweep."""
        dropped, num_copies = self.dropped, self._num_copies
        while dropped:
            id = dropped.popleft()
            with self._lock:
                remaining = num_copies[id] - 1
                if remaining:
                    num_copies[id] = remaining
                else:
                    del num_copies[id]
            if not remaining:
                self.last_copy_dropped(id)

    def last_copy_dropped(self, id: int) -> None:
        """Handle the drop of the last copy of a handle in this process."""
        raise NotImplementedError

    def unregister(self) -> None:
        """Remove the table when its engine is closed."""
        _tables.pop(self.uid, None)


class DriverHandles(HandleTable):
    """The driver's table: it knows which workers hold a handle, and frees what no process refers to."""

    def __init__(self, uid: str) -> None:
        super().__init__(uid)
        self._ids = itertools.count(1)
        self._free_callbacks: dict[int, Callable[[int], None]] = {}
        self._num_sent: dict[int, dict[object, int]] = {}  # by handle and worker, less the arrivals that it released

    def new_id(self, free: Callable[[int], None]) -> int:
        """Return a new id, for which the caller must create a Handle at once.

        Args:
            free: called once with the id when no process holds a handle of it any more.
        """
        id = next(self._ids)
        self._free_callbacks[id] = free
        return id

    def count_sent(self, worker: object, ids: Iterable[int]) -> None:
        """Count a message to a worker that carries these ids."""
        for id in ids:
            counts = self._num_sent.setdefault(id, {})
            counts[worker] = counts.get(worker, 0) + 1

    def count_released(self, worker: object, id: int, arrivals: int) -> None:
        """Process a worker's report that it has dropped its last copy, and how many copies had arrived there."""
        counts = self._num_sent.get(id)
        if counts and worker in counts:  # else the worker was declared dead in the meantime
            counts[worker] -= arrivals
            if counts[worker] <= 0:
                del counts[worker]
                self._free_if_unused(id)

    def remove_worker(self, worker: object) -> None:
        """Remove a worker that has died: it holds no handles any more."""
        for id in [id for id, counts in self._num_sent.items() if worker in counts]:
            del self._num_sent[id][worker]
            self._free_if_unused(id)

    def last_copy_dropped(self, id: int) -> None:
        """Free the id unless a worker holds it."""
        self._free_if_unused(id)

    def _free_if_unused(self, id: int) -> None:
        if id in self._num_copies or self._num_sent.get(id):
            return
        self._num_sent.pop(id, None)
        self.cache.pop(id, None)
        free = self._free_callbacks.pop(id, None)
        if free is not None:
            free(id)


class WorkerHandles(HandleTable):
    """A worker's table: it collects the releases to report to the driver."""

    def __init__(self, uid: str) -> None:
        super().__init__(uid)
        self._num_arrivals: dict[int, int] = {}
        self._dropped_at: dict[int, float] = {}  # times at which handles with a cache entry lost their last copy
        self._releases: list[tuple[int, int]] = []

    def count_arrivals(self, ids: Iterable[int]) -> list[Handle]:
        """Count an arrived message that carries these ids. Return handles, to be kept as long as the message."""
        handles = []
        for id in ids:
            self._num_arrivals[id] = self._num_arrivals.get(id, 0) + 1
            handles.append(Handle(self, id))
        return handles

    def last_copy_dropped(self, id: int) -> None:
        """Prepare the report to the driver. Keep the cache entry: the next call may well bring the handle again."""
        self._releases.append((id, self._num_arrivals.pop(id, 0)))
        if id in self.cache:
            self._dropped_at[id] = time.monotonic()

    def forget_value(self, value_id: int) -> None:
        """Remove the cache entry that was read from a stored value, which the driver has freed."""
        id = self.cached_handles.pop(value_id, None)
        if id is not None and id not in self._num_copies:
            self.cache.pop(id, None)
            self._dropped_at.pop(id, None)

    def take_releases(self) -> list[tuple[int, int]]:
        """Return (id, arrivals) of every handle to report to the driver, and remove old cache entries."""
        self.sweep()
        for id, dropped_at in list(self._dropped_at.items()):
            if id in self._num_copies or time.monotonic() - dropped_at > _CACHE_SECONDS:
                del self._dropped_at[id]
                if id not in self._num_copies:
                    self.cache.pop(id, None)
        releases, self._releases = self._releases, []
        return releases
