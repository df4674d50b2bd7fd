"""An actor of the process engine, as the driver sees it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np

from raceway.engine._core import CoreActor
from raceway.engine._reactor import Reactor
from raceway.engine.process.connection import WorkerConnection
from raceway.engine.process.output import WorkerOutput
from raceway.engine.shared_memory.arena_reader import ArenaReader
from raceway.engine.shared_memory.control_file import ControlFile, anonymous_file


class ProcessActor(CoreActor):
    """An actor in a worker process, and the driver's end of everything it shares with that process."""

    index = -1
    """The index of its worker, which selects its rows of the control file; -1 while it has no process."""
    connection: WorkerConnection
    arena_reader: ArenaReader
    """Reads the worker's arena."""
    releases: np.ndarray[Any, Any]
    """The row in which the worker releases blocks of the driver's arena."""
    output: WorkerOutput
    pidfd: int | None = None

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.held_values: set[int] = set()
        """Ids of the stored values that the worker holds."""

    def open_channels(
        self,
        index: int,
        control: ControlFile,
        reactor: Reactor,
        portable: bool,
        connect: Callable[[ArenaReader], WorkerConnection],
    ) -> None:
        """Open everything that the driver shares with the worker, or nothing if that fails."""
        self.releases = control.row(2 * index)
        with contextlib.ExitStack() as undo:
            self.arena_reader = ArenaReader(anonymous_file(0, portable), control.row(2 * index + 1))
            undo.callback(self.arena_reader.close)
            self.output = WorkerOutput(reactor, self.name)
            undo.callback(self.output.close)
            undo.callback(os.close, self.output.worker_fd)
            self.connection = connect(self.arena_reader)
            undo.pop_all()

    def close_channels(self) -> None:
        """Close the driver's ends, except that of the output: its last lines may still come."""
        self.connection.close()
        self.arena_reader.close()
        self.releases = np.empty(0, np.uint16)  # the row would keep the control file open

    def close_worker_ends(self) -> None:
        """Close the driver's copies of the worker's ends, which the launcher has received."""
        self.connection.worker_end.close()
        os.close(self.output.worker_fd)

    def forget_process(self) -> None:
        """Clear the ids of a process that has ended or been killed."""
        if self.pidfd is not None:
            os.close(self.pidfd)
        self.pidfd = self.pid = None
        self.index = -1


def kill_process(pidfd: int) -> None:
    """Kill a process, unless it has ended."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
