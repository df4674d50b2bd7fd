"""Storages for TorchRL's replay buffers that are appended to: one in this process, one behind an object of the Runner.

`ReplayBuffer(storage=ObjectStorage(runner, 10_000), batch_size=64)` is a buffer like any other, and whoever holds the
storage, or an `Appender` of it, adds to the same rows. Every append is one patch of the object; a reader fetches the
patches that are new to it, and only as many are kept as the buffer's size needs.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from raceway.errors import ConfigError
from raceway.runner import ObjectRef, Runner, get_object, patch_object, update_object
from raceway.torchrl.appending import Appender, Columns, Patch, columns_of, num_rows
from raceway.torchrl.ring import RingStorage


class LocalStorage(RingStorage):
    """The rows of one process. What holds for `ObjectStorage` holds for it, except that nobody else adds to it.

    Args:
        max_size: rows that it holds; the newest stay.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have these rows and no others."""
        self._forget()
        self._cursor = state_dict["place"]
        if state_dict["rows"]:
            columns = columns_of(state_dict["rows"])
            self._restart(num_rows(columns))
            self._take_in([columns])

    def _append(self, columns: Columns, num: int, order: int) -> None:
        with self._lock:
            self._take_in([columns])

    def _empty(self) -> None:
        self._forget()
        self._bump_mutation_revision()

    def _to_send(self) -> Any:
        return self.state_dict()


class Base(NamedTuple):
    """What an object is before anything is appended, or again when it has been emptied."""

    token: str
    max_size: int

    @classmethod
    def new(cls, max_size: int) -> Base:
        """Return one that differs from all others."""
        return cls(uuid.uuid4().hex, max_size)


class ObjectStorage(RingStorage):
    """Rows behind an object of the Runner: any process of the run adds to them, reads and samples them.

    Sent to another process, it stays a name for the same rows; each process that reads has a copy of the newest, and
    the same row may have another index in each.

    Args:
        where: the Runner that makes the object; or the `ref` of a storage that there is.
        max_size: rows that it holds; the newest stay. With a `ref` it is known.
        live: whether it looks for new rows whenever it is asked how many there are. Otherwise `refresh()` does, which
            saves a message a sample where it is known when something was appended.
    """

    def __init__(self, where: Runner | ObjectRef, max_size: int | None = None, *, live: bool = True) -> None:
        if isinstance(where, ObjectRef):
            base = get_object(where, lambda base, _: base)
            if not isinstance(base, Base) or max_size not in (None, base.max_size):
                raise ConfigError(f"{where!r} is no storage of max_size={max_size}, but {base!r}")
            super().__init__(base.max_size)
            self.ref = where
        else:
            super().__init__(max_size)  # type: ignore[arg-type]
            self.ref = where.put_object(Base.new(self.max_size), max_size=self.max_size)
        self.live = live
        self._stale = True  # whether rows may have come since it looked, as far as this process knows
        self._base: Base | None = None  # what was read last, and the last patch of it
        self._last: Patch | None = None

    def appender(self) -> Appender:
        """Return what a worker needs to append to it."""
        return Appender(self.ref)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have these rows and no others, for all who read them."""
        self._empty()
        self._cursor = state_dict["place"]
        if state_dict["rows"]:
            self.append(state_dict["rows"])
            self.refresh()

    def _append(self, columns: Columns, num: int, order: int) -> None:
        patch_object(self.ref, Patch(columns, order), num)
        self._stale = True

    def _empty(self) -> None:
        update_object(self.ref, Base.new(self.max_size))
        self.refresh()

    def refresh(self) -> None:
        """Take in what others have appended."""
        with self._lock:
            self._stale = False
            get_object(self.ref, self._fold)

    def get(self, index: Any) -> Any:
        """Return rows of this process's copy: a number, slice, range, list or tensor of them."""
        if self._stale:
            self._look()  # what it appended itself must be there
        return super().get(index)

    def _look(self) -> None:
        if self.live:
            self.refresh()

    def _fold(self, base: Base, patches: list[Patch]) -> None:
        """Take in the patches that are new: those behind the last one of the time before."""
        begin = len(patches)
        while begin and patches[begin - 1] is not self._last:
            begin -= 1
        if base != self._base:
            self._forget()
            self._base = base
        new = patches[begin:]
        if new:
            if not begin:  # all of them: what was there before is among them, or gone
                self._restart(sum(num_rows(patch.columns) for patch in new))
            self._take_in([patch.columns for patch in sorted(new, key=lambda patch: patch.order)])
            self._last = patches[-1]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_base": None, "_last": None, "_stale": True}
