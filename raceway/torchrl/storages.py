"""Append-only storages for TorchRL's replay buffers: one in this process, one behind an object of the Runner.

`ReplayBuffer(storage=ObjectStorage(runner, 10_000), batch_size=64)` is a buffer like any other, and every process that
holds the storage, or an `Appender` of it, adds to the same rows. Every append is one patch of the object; a reader
fetches the patches that are new to it, and only as many are kept as the buffer's size requires.
"""

from __future__ import annotations

import uuid
from typing import Any, NamedTuple

from raceway.errors import ConfigError
from raceway.runner import ObjectRef, Runner, get_object, patch_object, update_object
from raceway.torchrl.appending import AppendedBatch, Appender, FlatBatch, check_num_rows, flatten_batch
from raceway.torchrl.ring import RingStorage


class LocalStorage(RingStorage):
    """Rows of one process. It behaves like `ObjectStorage`, except that no other process adds to it.

    Args:
        max_size: the number of rows to keep; the oldest are overwritten.
    """

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace all rows by those of a state dict."""
        self._reset()
        self._cursor = state_dict["place"]
        if state_dict["rows"]:
            columns = flatten_batch(state_dict["rows"])
            self._clear(check_num_rows(columns))
            self._write_batches([columns])

    def _append(self, columns: FlatBatch, num_rows: int, order: int) -> None:
        with self._lock:
            self._write_batches([columns])

    def _empty(self) -> None:
        self._reset()
        self._bump_mutation_revision()

    def _rows_to_send(self) -> Any:
        return self.state_dict()


class StorageHeader(NamedTuple):
    """The base of a storage's object, whose patches are the appended batches. A new header empties the storage."""

    token: str
    max_size: int

    @classmethod
    def new(cls, max_size: int) -> StorageHeader:
        """Return a header that differs from all others."""
        return cls(uuid.uuid4().hex, max_size)


class ObjectStorage(RingStorage):
    """Rows behind an object of the Runner: any process of the run appends to them, reads and samples them.

    Sent to another process, it still refers to the same rows. Each process that reads has its own copy of the newest
    rows, in which the same row may have a different index.

    Args:
        where: the Runner in which to create the object; or the `ref` of an existing storage.
        max_size: the number of rows to keep; the oldest are dropped. Not needed with a `ref`.
        live: whether to fetch new rows whenever the number of rows is asked for. Otherwise only `refresh()` does, which
            saves one message per sample in programs that know when rows were appended.
    """

    def __init__(self, where: Runner | ObjectRef, max_size: int | None = None, *, live: bool = True) -> None:
        if isinstance(where, ObjectRef):
            header = get_object(where, lambda base, _: base)
            if not isinstance(header, StorageHeader) or max_size not in (None, header.max_size):
                raise ConfigError(f"{where!r} is not a storage of max_size={max_size}, but {header!r}")
            super().__init__(header.max_size)
            self.ref = where
        else:
            super().__init__(max_size)  # type: ignore[arg-type]
            self.ref = where.put_object(StorageHeader.new(self.max_size), max_size=self.max_size)
        self.live = live
        self._stale = True  # whether rows may have been appended since the last refresh, as far as this process knows
        self._header: StorageHeader | None = None  # the header and the last patch that were read
        self._last_patch: AppendedBatch | None = None

    def appender(self) -> Appender:
        """Return a small handle with which a worker appends to this storage."""
        return Appender(self.ref)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace all rows by those of a state dict, for all processes."""
        self._empty()
        self._cursor = state_dict["place"]
        if state_dict["rows"]:
            self.append(state_dict["rows"])
            self.refresh()

    def _append(self, columns: FlatBatch, num_rows: int, order: int) -> None:
        patch_object(self.ref, AppendedBatch(columns, order), num_rows)
        self._stale = True

    def _empty(self) -> None:
        update_object(self.ref, StorageHeader.new(self.max_size))
        self.refresh()

    def refresh(self) -> None:
        """Fetch the rows that other processes have appended."""
        with self._lock:
            self._stale = False
            get_object(self.ref, self._apply_patches)

    def get(self, index: Any) -> Any:
        """Return rows of this process's copy by their index: a number, slice, range, list or tensor."""
        if self._stale:
            self._refresh_if_live()  # rows that this process appended must be visible to it
        return super().get(index)

    def _refresh_if_live(self) -> None:
        if self.live:
            self.refresh()

    def _apply_patches(self, header: StorageHeader, patches: list[AppendedBatch]) -> None:
        """Write the rows of the patches that follow the last one of the previous call."""
        begin = len(patches)
        while begin and patches[begin - 1] is not self._last_patch:
            begin -= 1
        if header != self._header:
            self._reset()
            self._header = header
        new = patches[begin:]
        if new:
            if not begin:  # all patches are new: they contain, or have outlived, the rows that were read before
                self._clear(sum(check_num_rows(patch.columns) for patch in new))
            self._write_batches([patch.columns for patch in sorted(new, key=lambda patch: patch.order)])
            self._last_patch = patches[-1]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_header": None, "_last_patch": None, "_stale": True}
