"""The worker processes of an engine: started and killed through the launcher, which reports how they end."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from raceway.engine._reactor import Reactor
from raceway.engine.process.actor import ProcessActor, kill_process
from raceway.engine.process.launcher_client import LauncherClient
from raceway.engine.process.output import WorkerOutput
from raceway.engine.shared_memory.control_file import NUM_ROWS
from raceway.errors import ActorDied, ActorError, ActorStartError, ResourceError

_MAX_WORKERS = NUM_ROWS // 2 - 1
_CLOSE_SECONDS = 2.0  # for idle workers to exit by themselves on close


class WorkerProcesses:
    """Starts and ends worker processes. Its methods are called with the reactor's lock held, except `close`.

    Args:
        reactor: the engine's event loop.
        preload: modules for the launcher to import.
        portable: use only what every POSIX system has.
        on_death: called with (actor, error) when the process of an actor has ended by itself.
        is_closed: whether the engine is closed.
    """

    def __init__(
        self,
        reactor: Reactor,
        preload: Sequence[str],
        portable: bool,
        on_death: Callable[[ProcessActor, ActorError], None],
        is_closed: Callable[[], bool],
    ) -> None:
        self.actors: dict[int, ProcessActor] = {}
        """Actors that have a process, by the index of their worker."""
        self._reactor = reactor
        self._preload = preload
        self._portable = portable
        self._on_death = on_death
        self._is_closed = is_closed
        self._free_indices = deque(range(_MAX_WORKERS))
        self._exiting: set[int] = set()  # workers without an actor whose processes have not ended yet
        self._outputs: set[WorkerOutput] = set()
        self._driver_alive, self._driver_alive_end = os.pipe()
        self._start_launcher()

    def _start_launcher(self) -> None:
        self.launcher = LauncherClient(
            self._reactor,
            self._driver_alive,
            self._preload,
            self._portable,
            on_started=self._started,
            on_ended=self._ended,
            on_launcher_died=self._launcher_died,
        )

    def next_index(self) -> int:
        """Return the index of the worker that `start` will start next."""
        if not self._free_indices:
            raise ResourceError(f"an engine can have at most {_MAX_WORKERS} workers at once")
        return self._free_indices[0]

    def start(self, actor: ProcessActor, request: dict[str, Any], fds: Sequence[int]) -> None:
        """Start the process of an actor whose channels have been opened for `next_index`.

        Args:
            actor: the actor.
            request: what the launcher and the worker must know.
            fds: the worker's ends of its channels, as in `launcher.REQUEST_FDS`.
        """
        actor.index = self._free_indices.popleft()
        self.actors[actor.index] = actor
        self._outputs = {output for output in self._outputs if output.fd >= 0} | {actor.output}
        self.launcher.send({"action": "start", "worker": actor.index, "portable": self._portable, **request}, fds)
        actor.close_worker_ends()

    def kill(self, actor: ProcessActor) -> None:
        """Kill the process of an actor."""
        if actor.pidfd is not None:
            kill_process(actor.pidfd)
        else:
            self.launcher.send({"action": "kill", "worker": actor.index})

    def remove(self, actor: ProcessActor, *, kill: bool) -> None:
        """Stop managing the process of an actor: kill it, or let it exit by itself when its connection is closed."""
        del self.actors[actor.index]
        self._exiting.add(actor.index)
        if kill:
            self.kill(actor)

    # Reports of the launcher.

    def _started(self, index: int, pid: int, pidfd: int | None) -> None:
        actor = self.actors.get(index)
        if actor is not None and actor.pid is None:
            actor.pid, actor.pidfd = pid, pidfd
        elif pidfd is not None:  # the actor was killed before its process had started
            kill_process(pidfd)
            os.close(pidfd)

    def _ended(self, index: int, code: int) -> None:
        """Handle what the worker sent before it ended, then declare its actor dead."""
        actor = self.actors.get(index)
        if actor is not None:
            actor.connection.receive_all()
            actor.output.drain()
        if actor is not None and actor.error is None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
            kind, when = (ActorDied, "") if actor.ready.done() else (ActorStartError, " before it was ready")
            text = f"{actor.name} (pid {actor.pid}) {how}{when}{actor.output.tail()}"
            self._on_death(actor, kind(text, actor.name))
        self._exiting.discard(index)
        self._free_indices.append(index)
        self._reactor.notify()

    def _launcher_died(self) -> None:
        orphans = list(self.actors.values())
        indices = self._exiting | {actor.index for actor in orphans}
        if not self._is_closed():
            self._start_launcher()  # before the deaths are reported: a callback may restart its actor at once
        for actor in orphans:
            if actor.pidfd is None and actor.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(actor.pid, signal.SIGKILL)  # on systems where workers do not die with their parent
            self._on_death(actor, ActorDied(f"{actor.name} died with the launcher of its engine", actor.name))
        self._exiting -= indices
        self._free_indices.extend(indices)
        self._reactor.notify()

    # Closing.

    def close(self) -> None:
        """Wait a moment for idle workers to exit, then end the launcher, which kills the others."""
        self._reactor.wait(lambda: not self._exiting, timeout=_CLOSE_SECONDS)
        with self._reactor.lock:
            self.launcher.close()
            for output in self._outputs:
                output.drain()
                output.close()
        os.close(self._driver_alive)
        os.close(self._driver_alive_end)

    def close_in_forked_child(self) -> None:
        """Close the child's copies of the descriptors that workers and launcher watch to notice the driver's end."""
        connections = [actor.connection.fileno() for actor in self.actors.values()]
        for fd in (self._driver_alive_end, self.launcher.fileno(), *connections):
            with contextlib.suppress(OSError):
                os.close(fd)
