"""Metrics for TensorBoard: one event file in the run directory."""

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
from raceway.settings.progress import progress_in

_log = logging.getLogger(__name__)

ROW_EVERY = 0.2
"""Minimum seconds between two rows that are written."""
FLUSH_EVERY = 6.0
"""Seconds between two flushes to the operating system: at most this much is lost if the process is killed."""
ALWAYS_WRITTEN = ("eval/mean_reward", "time/save_seconds")
"""Metrics that few rows have. These rows are always written."""


def _of_policies(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of policies in a row: with several agents, the next row may have those of others.

    >>> _of_policies({"rollout/ep_rew_mean": 3, "rollout/pair/ep_rew_mean": 1})
    {'rollout/pair/ep_rew_mean': 1}
    """
    return {name: value for name, value in row.items() if name.count("/") == 2}


class TensorBoardWriter:
    """Writes rows of metrics as scalars, one for each number, at the environment steps (or updates) so far.

    With `metrics_interval=0`, a fast algorithm has hundreds of rows a second, which a chart cannot resolve, and each
    costs 0.1 ms. So at most one row every 0.2 s is written, plus those with an evaluation and the last. A full disk is
    logged once, and training continues.

    Each row is one record, built from tensorboardX's messages and written here. tensorboardX's own writer makes one
    record per number and sends each through a `multiprocessing` queue to a thread: 5 ms per row, measured.

    Args:
        directory: the directory of the event file.
        from_step: for a resumed run: TensorBoard no longer shows later steps of older event files.
        clock: returns the current time in seconds.
    """

    def __init__(
        self, directory: Path, from_step: int | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            from tensorboardX.proto import event_pb2
            from tensorboardX.record_writer import masked_crc32c
        except ImportError as error:
            raise ConfigError("TensorBoard metrics need tensorboardX: pip install tensorboardX") from error
        self._messages: Any = event_pb2
        self._checksum: Callable[[bytes], int] = masked_crc32c
        self._clock = clock
        directory.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads files in the order of their names, and a run may be resumed within the same second.
        self.path = directory / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = self.path.open("xb", buffering=0)
        self._records: list[bytes] = []  # not yet handed to the operating system
        self._failing = False
        self._last_row_time = self._last_flush_time = float("-inf")
        self._pending_row: Mapping[str, Any] | None = None
        self._write(file_version="brain.Event:2")
        if from_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=from_step + 1, session_log=start)
        self.flush()

    def add(self, row: Mapping[str, Any]) -> None:
        """Write a row, or keep it pending if another was written less than `ROW_EVERY` ago."""
        now = self._clock()
        row = {**_of_policies(self._pending_row or {}), **row}
        if now - self._last_row_time < ROW_EVERY and not any(name in row for name in ALWAYS_WRITTEN):
            self._pending_row = row
            return
        self._pending_row, self._last_row_time = None, now
        self._write_row(row)
        if now - self._last_flush_time >= FLUSH_EVERY:
            self.flush()

    def flush(self) -> None:
        """Write the pending row, and hand all records to the operating system, so that they outlive this process.

        Happens every 6 seconds while rows arrive. Call it before every checkpoint, so that a resumed run has no gap.
        """
        self._write_pending()
        self._last_flush_time = self._clock()
        records, self._records = b"".join(self._records), []
        # All or nothing: TensorBoard cannot read past an incomplete record.
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

    def _write_pending(self) -> None:
        if self._pending_row is not None:
            self._write_row(self._pending_row)
            self._pending_row = None

    def _write_row(self, row: Mapping[str, Any]) -> None:
        values = [
            {"tag": name, "simple_value": float(value)}
            for name, value in row.items()
            if isinstance(value, Real) and not isinstance(value, bool)
        ]
        self._write(step=progress_in(row).of(row), summary={"value": values})

    def _write(self, **event: Any) -> None:
        """Add one record: its length and data, each with a checksum."""
        data = self._messages.Event(wall_time=time.time(), **event).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = (struct.pack("<I", self._checksum(part)) for part in (length, data))
        self._records += (length, next(checksums), data, next(checksums))

    def _try(self, operation: Callable[[], Any]) -> bool:
        """Run a file operation and return whether it succeeded. The first of several failures is logged."""
        try:
            operation()
            return True
        except OSError as error:
            if not self._failing:
                _log.warning("%s cannot be written to: %s. Training continues without it", self.path, error)
            self._failing = True
            return False
