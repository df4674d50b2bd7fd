"""What TorchRL storages that are appended to have in common: the newest rows, in tensors that are allocated once."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase
from torchrl.data.replay_buffers.storages import Storage, TensorStorage
from torchrl.data.replay_buffers.writers import TensorDictMaxValueWriter

from raceway.checks import check_int
from raceway.errors import ConfigError, ReplayEmpty
from raceway.torchrl.appending import Columns, columns_of, num_rows, shown


class RowsCheckpointer(StorageCheckpointerBase):
    """Saves the rows of a storage in a folder, as plain arrays."""

    def dumps(self, storage: RingStorage, path: Any) -> None:
        """Write them."""
        if self._save_hooks or self._load_hooks:
            raise ConfigError(f"{type(storage).__name__} calls no hooks when it is saved. Register none.")
        folder, state = Path(path), storage.state_dict()
        folder.mkdir(exist_ok=True)
        np.savez(folder / "rows.npz", *columns_of(state["rows"]).values())
        about = {"place": state["place"], "columns": list(state["rows"])}
        (folder / "rows.json").write_text(json.dumps(about), encoding="utf-8")

    def loads(self, storage: RingStorage, path: Any) -> None:
        """Read them."""
        about = json.loads((Path(path) / "rows.json").read_text(encoding="utf-8"))
        with np.load(Path(path) / "rows.npz") as arrays:
            names = map(tuple, about["columns"])
            rows = {name: arrays[f"arr_{number}"] for number, name in enumerate(names)}
        storage.load_state_dict({"rows": rows, "place": about["place"]})


class RingStorage(TensorStorage):
    """The newest rows, in tensors that are allocated once, with the first ones.

    It is a TensorStorage because TorchRL's buffers ask for one of their own when they choose how to collate.
    """

    supports_conditional_update = False
    _storage: Any  # a TensorDict of max_size rows, or a tensor, once there is one
    _default_checkpointer = RowsCheckpointer

    def __init__(self, max_size: int) -> None:
        # "compilable" means that counters are plain numbers: TorchRL would share them through semaphores, for
        # processes that it starts itself, at the price of a process that watches over those.
        super().__init__(None, check_int("max_size", max_size), compilable=True)
        self._place = 0  # where the next row goes
        self._cursor: int | None = None  # where a writer in this process thinks that is
        self._columns: Columns = {}
        self._rows: Any = None  # as many as there are; made when they are asked for
        self._lock = threading.RLock()

    def append(self, batch: Any, order: int = 0) -> int:
        """Append the rows of a batch and return how many they are; see `Appender.append`."""
        columns = columns_of(batch)
        num = num_rows(columns)
        self._check(columns)
        self._cursor = ((self._place if self._cursor is None else self._cursor) + num) % self.max_size
        self._append(columns, num, order)
        return num

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append what a TorchRL writer gives. Its cursor only says how much that is: others may append too."""
        writers = [getattr(buffer, "_writer", None) for buffer in self._attached_entities]
        if not set_cursor or any(isinstance(writer, TensorDictMaxValueWriter) for writer in writers):
            raise self._refusal("rows that it holds cannot be replaced")
        columns = columns_of(torch.stack(data) if isinstance(data, list) else data)
        places = range(self.max_size)[cursor] if isinstance(cursor, slice) else cursor
        if np.ndim(places) == 0:
            columns, places = {path: column[None] for path, column in columns.items()}, [places]
        num, first, last = num_rows(columns), int(places[0]), int(places[-1])
        if len(places) != num or (last - first + 1 - num) % self.max_size:
            raise self._refusal(f"{num} rows cannot be put at {len(places)} places from {first} to {last}")
        self._check(columns)
        self._cursor = (last + 1) % self.max_size
        self._append(columns, num, 0)

    def get(self, index: Any) -> Any:
        """Return rows of this process's copy: a number, slice, range, list or tensor of them."""
        if isinstance(index, slice):  # which means all that there are; others name some that were told of
            self._look()
        self._check_filled()
        if self._rows is None:
            self._rows = self._storage[: self._len]
        return self._rows[list(index) if isinstance(index, range) else index]

    def columns(self, index: Any) -> Columns:
        """Return rows as plain arrays, which costs a fraction of a TensorDict: for what is sent on at once."""
        self._check_filled()
        return {path: column[: self._len][index] for path, column in self._columns.items()}

    def __len__(self) -> int:
        self._look()
        return int(self._len)

    def refresh(self) -> None:
        """Take in what others have appended."""

    @property
    def shape(self) -> torch.Size:
        """How many rows there are."""
        return torch.Size([len(self)])

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, oldest first, by the paths of their names."""
        with self._lock:
            self.refresh()
            rows = {path: torch.from_numpy(self._in_order(column)) for path, column in self._columns.items()}
            return {"rows": rows if self._len else {}, "place": self._place}

    def _in_order(self, column: np.ndarray) -> np.ndarray:
        """Return a copy of a column, oldest row first."""
        oldest = self._place if self._len == self.max_size else 0
        return np.concatenate([column[oldest : self._len], column[:oldest]])

    def _rand_given_ndim(self, batch_size: int) -> torch.Tensor:
        # Of the rows that there were when the sampler asked how many: what was added since is for its next look.
        self._check_filled()
        return torch.randint(0, self._len, (batch_size,), generator=self._rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._len} rows seen, max_size={self.max_size})"

    def __getstate__(self) -> dict[str, Any]:
        state = Storage.__getstate__(self)
        state |= {"_storage": None, "initialized": False, "_len_value": 0, "_columns": {}, "_rows": None}
        state["_sent"] = self._to_send()
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        sent = state.pop("_sent")
        Storage.__setstate__(self, state)
        self._lock = threading.RLock()
        if sent is not None:
            self.load_state_dict(sent)

    def _check_filled(self) -> None:
        if not self._len:
            raise ReplayEmpty("the storage holds no rows yet. Append some before you read or sample.")

    def _refusal(self, problem: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} is only appended to: {problem}. Use add() and extend().")

    def _check(self, columns: Columns) -> None:
        """Refuse a batch of another form than that of the rows there are."""
        if not self._columns:
            return
        if columns.keys() != self._columns.keys():
            raise ConfigError(f"a batch of columns {_named(columns)} does not fit rows of {_named(self._columns)}")
        for path, column in columns.items():
            ring = self._columns[path]
            if column.shape[1:] != ring.shape[1:] or not np.can_cast(column.dtype, ring.dtype, "same_kind"):
                raise ConfigError(
                    f"column {shown(path)} of shape {column.shape[1:]} and type {column.dtype} does not fit rows of "
                    f"{ring.shape[1:]} and {ring.dtype}"
                )

    def _restart(self, num: int) -> None:
        """Forget all rows, for so many that follow. If these fill the ring, they end where a writer here says."""
        self._len, self._rows = 0, None
        if num < self.max_size:
            self._place = 0
        elif self._cursor is not None:
            self._place = (self._cursor - num) % self.max_size

    def _forget(self) -> None:
        self._restart(0)
        self._storage, self._columns, self.initialized = None, {}, False

    def _take_in(self, batches: Sequence[Columns]) -> None:
        """Write the rows of batches into the ring, over the oldest; or none, if one does not fit."""
        if not self._columns:
            self._allocate(batches[0])
        for columns in batches:
            self._check(columns)
        for columns in batches:
            self._write(columns, num_rows(columns))
        self._set_last_cursor((self._place - 1) % self.max_size)
        self._bump_mutation_revision()

    def _write(self, columns: Columns, num: int) -> None:
        skipped = max(num - self.max_size, 0)  # the newest would write over them at once
        begin = (self._place + skipped) % self.max_size
        middle = skipped + min(num - skipped, self.max_size - begin)  # the row with which the ring begins again
        for path, column in columns.items():
            ring = self._columns[path]
            ring[begin : begin + middle - skipped] = column[skipped:middle]
            if middle < num:
                ring[: num - middle] = column[middle:]
        self._place = (self._place + num) % self.max_size
        if self._len < self.max_size:
            self._len, self._rows = min(self._len + num, self.max_size), None

    def _allocate(self, columns: Columns) -> None:
        arrays = {path: np.zeros((self.max_size, *column.shape[1:]), column.dtype) for path, column in columns.items()}
        try:
            tensors = {path: torch.from_numpy(array) for path, array in arrays.items()}
        except TypeError as error:
            raise ConfigError(f"torch cannot hold the columns {_named(columns)}: {error}") from error
        self._storage = tensors[()] if () in tensors else TensorDict(tensors, [self.max_size])
        self._columns, self.initialized = arrays, True

    def _append(self, columns: Columns, num: int, order: int) -> None:
        raise NotImplementedError

    def _look(self) -> None:
        """Take in what others have appended, if that is to be done without being asked for."""

    def _to_send(self) -> Any:
        """Return what a copy in another process has to be given."""


def _named(columns: Columns) -> str:
    return ", ".join(map(shown, columns))
