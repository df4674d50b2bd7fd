"""Metrics for TensorBoard: one file of events in the folder of a run."""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from raceway.checkpoints.files import append
from raceway.errors import ConfigError

_log = logging.getLogger(__name__)

ROW_EVERY = 0.2
"""Seconds between two rows that are written."""
FLUSH_EVERY = 6.0
"""Seconds between two times that what was written is handed to the system: what a killed process may lose."""


RARE = ("eval/mean_reward", "time/save_seconds")
"""Metrics that only few rows have: these rows are always written."""


class Events:
    """Writes rows of metrics as scalars: each number under its name, at the steps of environments so far.

    A fast algorithm has hundreds of rows a second, which no one can tell apart in a picture, and a row costs 0.1 ms. So
    at most one row every 0.2 s is written, and always those with an evaluation, and the last. `metrics.jsonl` has all.
    If the disk is full, that is said once, and training goes on.

    Each row is one record, made with tensorboardX's messages and written here. tensorboardX's own writer makes a record
    of every number and sends each through a queue of `multiprocessing` to a thread: 5 ms a row, measured.

    Args:
        folder: where the file of events goes.
        from_step: for a run that is resumed: what older files say of later steps is not shown any more.
        clock: tells the seconds.
    """

    def __init__(
        self, folder: Path, from_step: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            from tensorboardX.proto import event_pb2
            from tensorboardX.record_writer import masked_crc32c
        except ImportError as error:
            raise ConfigError("metrics for TensorBoard need tensorboardX: pip install tensorboardX") from error
        self._messages: Any = event_pb2
        self._checksum: Callable[[bytes], int] = masked_crc32c
        self._clock = clock
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and a run may be resumed within a second.
        self.path = folder / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("xb", buffering=0)
        self._records: list[bytes] = []  # that are written, but not handed to the system
        self._failing = False
        self._written = self._flushed = float("-inf")
        self._held: Mapping[str, Any] | None = None
        self._write(file_version="brain.Event:2")
        if from_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=from_step + 1, session_log=start)
        self.flush()

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row, or hold it back if one was written just now."""
        now = self._clock()
        if now - self._written < ROW_EVERY and not any(name in row for name in RARE):
            self._held = row
            return
        self._held, self._written = None, now
        self._write_row(row)
        if now - self._flushed >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write what is held back, and hand all to the system, so that it outlives this process.

        It is done every 6 seconds while rows come; do it with every checkpoint, so that a resumed run has no gap.
        """
        self._write_held()
        self._flushed = self._clock()
        records, self._records = b"".join(self._records), []
        # All or nothing: behind a record that is torn, TensorBoard finds no other.
        if records and self._try(lambda: append(self._file, records)):
            self._failing = False

    def close(self) -> None:
        """Write the last row, and close the file."""
        if self._file.closed:
            return
        self.flush()
        self._try(self._file.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write_held(self) -> None:
        if self._held is not None:
            self._write_row(self._held)
            self._held = None

    def _write_row(self, row: Mapping[str, Any]) -> None:
        values = [
            {"tag": name, "simple_value": float(value)}
            for name, value in row.items()
            if isinstance(value, Real) and not isinstance(value, bool)
        ]
        self._write(step=int(row["time/total_timesteps"]), summary={"value": values})

    def _write(self, **event: Any) -> None:
        """Make one record: its length and data, each with a checksum."""
        data = self._messages.Event(wall_time=time.time(), **event).SerializeToString()
        head = struct.pack("<Q", len(data))
        sums = (struct.pack("<I", self._checksum(part)) for part in (head, data))
        self._records += (head, next(sums), data, next(sums))

    def _try(self, do: Callable[[], Any]) -> bool:
        try:
            do()
            return True
        except OSError as error:
            if not self._failing:
                _log.warning("%s cannot be written to: %s. Training goes on without", self.path, error)
            self._failing = True
            return False
