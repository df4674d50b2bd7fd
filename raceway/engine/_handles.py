"""Who still refers to what: counted names for things that the driver keeps.

A `Handle` names something in the driver (a stored value, an object, a future). Python counts the handles in one
process; this module counts the processes. Every message that carries a handle to a worker is counted where it is sent
and where it arrives. A worker that has dropped its last copy says how many arrivals it has seen; if that is fewer than
were sent, another is still on its way and the name stays alive.
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

_REMEMBERED_SECONDS = 30.0

_tables: dict[str, Table] = {}
"""The tables of this process, by the uid of the engine they belong to."""


class Handle:
    """A counted name. Equal handles name the same thing, in every process."""

    __slots__ = ("__weakref__", "_table", "id")

    def __init__(self, table: Table, id: int) -> None:
        self.id = id
        self._table = table
        table.held(id)

    def __del__(self) -> None:
        # May run at any instant, in any thread and inside any lock: so only note it, atomically.
        self._table.dropped.append(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other.id == self.id and other._table.uid == self._table.uid

    def __hash__(self) -> int:
        return hash((self._table.uid, self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self._table.uid}>"

    def __copy__(self) -> Handle:
        return self

    def __deepcopy__(self, memo: object) -> Handle:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        _codec.note_handle(self)
        return _revive, (type(self), self._table.uid, self.id)


def _revive(cls: type[Handle], uid: str, id: int) -> Handle:
    try:
        table = _tables[uid]
    except KeyError:
        raise ForeignReference(f"reference {id} belongs to the run {uid!r}, which this process is no part of") from None
    return cls(table, id)


class Table:
    """The handles of one engine in one process: how many live here, and what the other side must be told."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.dropped: deque[int] = deque()
        self.read: Callable[[int], Any]
        """Reads a stored value by its id; set by the engine."""
        self.cache: dict[int, Any] = {}
        """What this process remembers of a handle."""
        self.cached_from: dict[int, int] = {}
        """The stored value that it remembers so, and the handle it remembers it for."""
        self._local: dict[int, int] = {}
        self._lock = threading.Lock()  # values are decoded, and so handles made, on any thread
        _tables[uid] = self

    def held(self, id: int) -> None:
        with self._lock:
            self._local[id] = self._local.get(id, 0) + 1

    def sweep(self) -> None:
        """Account for the handles that were dropped since the last sweep."""
        dropped, local = self.dropped, self._local
        while dropped:
            id = dropped.popleft()
            with self._lock:
                left = local[id] - 1
                if left:
                    local[id] = left
                else:
                    del local[id]
            if not left:
                self.unheld(id)

    def unheld(self, id: int) -> None:
        raise NotImplementedError

    def forget(self) -> None:
        _tables.pop(self.uid, None)


class HomeTable(Table):
    """The driver's table: it knows who else holds a handle, and frees what nobody does."""

    def __init__(self, uid: str) -> None:
        super().__init__(uid)
        self._ids = itertools.count(1)
        self._free: dict[int, Callable[[int], None]] = {}
        self._sent: dict[int, dict[object, int]] = {}

    def new(self, free: Callable[[int], None]) -> int:
        """Return a fresh id; `free(id)` is called once when nobody holds it any more. Make a Handle of it at once."""
        id = next(self._ids)
        self._free[id] = free
        return id

    def knows(self, id: int) -> bool:
        return id in self._free

    def sent(self, peer: object, ids: Iterable[int]) -> None:
        for id in ids:
            counts = self._sent.setdefault(id, {})
            counts[peer] = counts.get(peer, 0) + 1

    def released(self, peer: object, id: int, arrivals: int) -> None:
        counts = self._sent.get(id)
        if counts and peer in counts:  # not there: the peer was declared dead meanwhile
            counts[peer] -= arrivals
            if counts[peer] <= 0:
                del counts[peer]
                self._collect(id)

    def peer_gone(self, peer: object) -> None:
        for id in [id for id, counts in self._sent.items() if peer in counts]:
            del self._sent[id][peer]
            self._collect(id)

    def unheld(self, id: int) -> None:
        self._collect(id)

    def _collect(self, id: int) -> None:
        if id in self._local or self._sent.get(id):
            return
        self._sent.pop(id, None)
        self.cache.pop(id, None)
        free = self._free.pop(id, None)
        if free is not None:
            free(id)


class AwayTable(Table):
    """A worker's table: it collects the releases that the driver must hear of."""

    def __init__(self, uid: str) -> None:
        super().__init__(uid)
        self._arrived: dict[int, int] = {}
        self._unheld_at: dict[int, float] = {}  # handles of which something is remembered, though they are let go
        self.releases: list[tuple[int, int]] = []

    def arrived(self, ids: Iterable[int]) -> list[Handle]:
        """Count a message that carried these ids; the handles returned keep them alive as long as it is."""
        found = []
        for id in ids:
            self._arrived[id] = self._arrived.get(id, 0) + 1
            found.append(Handle(self, id))
        return found

    def unheld(self, id: int) -> None:
        self.releases.append((id, self._arrived.pop(id, 0)))
        if id in self.cache:  # the next call may well bring it again
            self._unheld_at[id] = time.monotonic()

    def value_gone(self, stored: int) -> None:
        """Forget what was remembered of a stored value that the driver has let go of."""
        id = self.cached_from.pop(stored, None)
        if id is not None and id not in self._local:
            self.cache.pop(id, None)
            self._unheld_at.pop(id, None)

    def take_releases(self) -> list[tuple[int, int]]:
        """Return what to tell the driver, and forget what has not been asked for in a while."""
        self.sweep()
        for id, since in list(self._unheld_at.items()):
            if id in self._local or time.monotonic() - since > _REMEMBERED_SECONDS:
                del self._unheld_at[id]
                if id not in self._local:
                    self.cache.pop(id, None)
        releases, self.releases = self.releases, []
        return releases
