"""The ring buffer behind both append-only TorchRL storages: the newest rows, in tensors that are allocated once."""

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
from raceway.torchrl.appending import FlatBatch, check_num_rows, flatten_batch, format_path


class RowsCheckpointer(StorageCheckpointerBase):
    """Saves the rows of a storage in a directory, as plain arrays."""

    def dumps(self, storage: RingStorage, path: Any) -> None:
        """Write the rows of a storage."""
        if self._save_hooks or self._load_hooks:
            raise ConfigError(f"{type(storage).__name__} does not call hooks when it is saved. Register none.")
        directory, state = Path(path), storage.state_dict()
        directory.mkdir(exist_ok=True)
        np.savez(directory / "rows.npz", *flatten_batch(state["rows"]).values())
        metadata = {"place": state["place"], "columns": list(state["rows"])}
        (directory / "rows.json").write_text(json.dumps(metadata), encoding="utf-8")

    def loads(self, storage: RingStorage, path: Any) -> None:
        """Read the rows of a storage."""
        metadata = json.loads((Path(path) / "rows.json").read_text(encoding="utf-8"))
        with np.load(Path(path) / "rows.npz") as arrays:
            column_paths = map(tuple, metadata["columns"])
            rows = {column_path: arrays[f"arr_{index}"] for index, column_path in enumerate(column_paths)}
        storage.load_state_dict({"rows": rows, "place": metadata["place"]})


class RingStorage(TensorStorage):
    """The newest rows, in tensors that are allocated when the first rows arrive.

    It is a TensorStorage because TorchRL's buffers check for that class when they choose how to collate.
    """

    supports_conditional_update = False
    _storage: Any  # None before the first rows, then a TensorDict of max_size rows, or a tensor
    _default_checkpointer = RowsCheckpointer

    def __init__(self, max_size: int) -> None:
        # "compilable" makes the counters plain numbers: otherwise TorchRL shares them with processes that it starts
        # itself, through semaphores, which costs an additional process that tracks those.
        super().__init__(None, check_int("max_size", max_size), compilable=True)
        self._next_index = 0  # index of the next row to write
        self._cursor: int | None = None  # the next index according to a TorchRL writer of this process
        self._columns: FlatBatch = {}
        self._rows: Any = None  # cached view of the rows that are filled
        self._lock = threading.RLock()

    def append(self, batch: Any, order: int = 0) -> int:
        """Append the rows of a batch and return their number; see `Appender.append`."""
        columns = flatten_batch(batch)
        num_rows = check_num_rows(columns)
        self._check_columns(columns)
        self._cursor = ((self._next_index if self._cursor is None else self._cursor) + num_rows) % self.max_size
        self._append(columns, num_rows, order)
        return num_rows

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> None:
        """Append the rows of a TorchRL writer. The cursor only gives their number: other processes may append too."""
        writers = [getattr(buffer, "_writer", None) for buffer in self._attached_entities]
        if not set_cursor or any(isinstance(writer, TensorDictMaxValueWriter) for writer in writers):
            raise self._append_only_error("its rows cannot be replaced")
        columns = flatten_batch(torch.stack(data) if isinstance(data, list) else data)
        indices = range(self.max_size)[cursor] if isinstance(cursor, slice) else cursor
        if np.ndim(indices) == 0:
            columns, indices = {path: column[None] for path, column in columns.items()}, [indices]
        num_rows, first, last = check_num_rows(columns), int(indices[0]), int(indices[-1])
        if len(indices) != num_rows or (last - first + 1 - num_rows) % self.max_size:
            raise self._append_only_error(
                f"{num_rows} rows cannot be written to {len(indices)} indices from {first} to {last}"
            )
        self._check_columns(columns)
        self._cursor = (last + 1) % self.max_size
        self._append(columns, num_rows, 0)

    def get(self, index: Any) -> Any:
        """Return rows of this process's copy by their index: a number, slice, range, list or tensor."""
        if isinstance(index, slice):  # may mean all rows; any other index names rows that are known here
            self._refresh_if_live()
        self._check_not_empty()
        if self._rows is None:
            self._rows = self._storage[: self._len]
        return self._rows[list(index) if isinstance(index, range) else index]

    def columns(self, index: Any) -> FlatBatch:
        """Return rows as plain arrays, at a fraction of the cost of a TensorDict: for rows to be sent on at once."""
        self._check_not_empty()
        return {path: column[: self._len][index] for path, column in self._columns.items()}

    def __len__(self) -> int:
        self._refresh_if_live()
        return int(self._len)

    def refresh(self) -> None:
        """Fetch the rows that other processes have appended."""

    @property
    def shape(self) -> torch.Size:
        """The number of rows."""
        return torch.Size([len(self)])

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, oldest first, by column path, and the index of the next row."""
        with self._lock:
            self.refresh()
            rows = {path: torch.from_numpy(self._in_order(column)) for path, column in self._columns.items()}
            return {"rows": rows if self._len else {}, "place": self._next_index}

    def _in_order(self, column: np.ndarray) -> np.ndarray:
        """Return a copy of a column, oldest row first."""
        oldest = self._next_index if self._len == self.max_size else 0
        return np.concatenate([column[oldest : self._len], column[:oldest]])

    def _rand_given_ndim(self, batch_size: int) -> torch.Tensor:
        # Sample from the rows that were counted when the sampler asked for the length; later ones wait for the next.
        self._check_not_empty()
        return torch.randint(0, self._len, (batch_size,), generator=self._rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._len} rows seen, max_size={self.max_size})"

    def __getstate__(self) -> dict[str, Any]:
        state = Storage.__getstate__(self)
        state |= {"_storage": None, "initialized": False, "_len_value": 0, "_columns": {}, "_rows": None}
        state["_sent"] = self._rows_to_send()
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        sent = state.pop("_sent")
        Storage.__setstate__(self, state)
        self._lock = threading.RLock()
        if sent is not None:
            self.load_state_dict(sent)

    def _check_not_empty(self) -> None:
        if not self._len:
            raise ReplayEmpty("the storage holds no rows yet. Append some before you read or sample.")

    def _append_only_error(self, problem: str) -> ConfigError:
        return ConfigError(f"{type(self).__name__} is append-only: {problem}. Use add() and extend().")

    def _check_columns(self, columns: FlatBatch) -> None:
        """Raise ConfigError if the columns, shapes or types of a batch are not those of the stored rows."""
        if not self._columns:
            return
        if columns.keys() != self._columns.keys():
            raise ConfigError(
                f"a batch of columns {_format_paths(columns)} does not fit rows of {_format_paths(self._columns)}"
            )
        for path, column in columns.items():
            ring = self._columns[path]
            if column.shape[1:] != ring.shape[1:] or not np.can_cast(column.dtype, ring.dtype, "same_kind"):
                raise ConfigError(
                    f"column {format_path(path)} of shape {column.shape[1:]} and type {column.dtype} does not fit "
                    f"rows of {ring.shape[1:]} and {ring.dtype}"
                )

    def _clear(self, num_rows: int) -> None:
        """Discard all rows before `num_rows` others are written.

        If these fill the ring, the last of them will be just before the cursor of a writer in this process.
        """
        self._len, self._rows = 0, None
        if num_rows < self.max_size:
            self._next_index = 0
        elif self._cursor is not None:
            self._next_index = (self._cursor - num_rows) % self.max_size

    def _reset(self) -> None:
        self._clear(0)
        self._storage, self._columns, self.initialized = None, {}, False

    def _write_batches(self, batches: Sequence[FlatBatch]) -> None:
        """Write the rows of batches over the oldest rows; if a batch does not fit, write none."""
        if not self._columns:
            self._allocate(batches[0])
        for columns in batches:
            self._check_columns(columns)
        for columns in batches:
            self._write(columns, check_num_rows(columns))
        self._set_last_cursor((self._next_index - 1) % self.max_size)
        self._bump_mutation_revision()

    def _write(self, columns: FlatBatch, num_rows: int) -> None:
        skipped = max(num_rows - self.max_size, 0)  # rows that the newest would overwrite at once
        begin = (self._next_index + skipped) % self.max_size
        wrap = skipped + min(num_rows - skipped, self.max_size - begin)  # the first row to go to index 0
        for path, column in columns.items():
            ring = self._columns[path]
            ring[begin : begin + wrap - skipped] = column[skipped:wrap]
            if wrap < num_rows:
                ring[: num_rows - wrap] = column[wrap:]
        self._next_index = (self._next_index + num_rows) % self.max_size
        if self._len < self.max_size:
            self._len, self._rows = min(self._len + num_rows, self.max_size), None

    def _allocate(self, columns: FlatBatch) -> None:
        arrays = {path: np.zeros((self.max_size, *column.shape[1:]), column.dtype) for path, column in columns.items()}
        try:
            tensors = {path: torch.from_numpy(array) for path, array in arrays.items()}
        except TypeError as error:
            raise ConfigError(f"torch cannot hold the columns {_format_paths(columns)}: {error}") from error
        self._storage = tensors[()] if () in tensors else TensorDict(tensors, [self.max_size])
        self._columns, self.initialized = arrays, True

    def _append(self, columns: FlatBatch, num_rows: int, order: int) -> None:
        raise NotImplementedError

    def _refresh_if_live(self) -> None:
        """Fetch the rows that other processes have appended, if this storage does so by itself."""

    def _rows_to_send(self) -> Any:
        """Return the rows that are pickled with the storage, as a state dict, or None."""


def _format_paths(columns: FlatBatch) -> str:
    return ", ".join(map(format_path, columns))
