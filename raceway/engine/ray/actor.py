"""Ray actors as the driver sees them: starting them, killing them, and why they died."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import Any

from raceway.engine._core import CoreActor
from raceway.engine.base import Message
from raceway.engine.process.worker import thread_environment
from raceway.engine.ray import private_api, ray
from raceway.engine.ray.actor_host import actor_class
from raceway.engine.ray.memory_sharing import DriverEnd
from raceway.engine.ray.modules import collect_sources
from raceway.engine.ray.wire import Wire, pack_reusable


class RayActor(CoreActor):
    """An actor that Ray runs."""

    key = 0
    """Identifies one incarnation; messages with an older key are discarded."""
    handle: Any = None
    """Ray's handle of the actor."""
    invoke: Any = None
    """The handle's method that runs a call, kept because looking it up is costly."""
    repeat: Any = None
    """The handle's method that runs the last call again."""
    last_wire: Wire = None
    """The last call, if it can be repeated."""
    node = ""
    """The node it runs on."""
    constructor_wire: Wire = None
    """The encoded constructor and its arguments."""
    num_waiting_requests = 0
    """Requests that wait for nested calls."""
    memory: DriverEnd | None = None
    """The memory that it shares with the driver."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.submitted: dict[int, Any] = {}
        """Calls that Ray has (0: the constructor), in order, each with its reply if that came before its turn."""
        self.queue: dict[int, Message] = {}
        """Calls that are kept in the driver, so that they can still be returned."""


class ActorStarter:
    """Starts Ray actors.

    Args:
        uid: the uid of the engine.
        is_local: whether Ray runs on this machine only and its workers have inherited the environment.
    """

    def __init__(self, uid: str, is_local: bool) -> None:
        self._uid = uid
        self._is_local = is_local
        self._class: Any = ray.remote(actor_class())
        self._sources: list[Any] | None = None  # an ObjectRef, in a list so that Ray does not resolve it

    def start(self, actor: RayActor, key: int, mailbox: Any) -> None:
        """Have Ray start an actor's process, and set the actor's handle."""
        if self._sources is None and not self._is_local:
            self._sources = [ray.put(collect_sources(sys.path))]
        if actor.constructor_wire is None:
            actor.constructor_wire = pack_reusable(actor.factory)
        needs = actor.resources
        options: dict[str, Any] = {"num_cpus": needs.cpus or 0, "num_gpus": needs.gpus, "resources": needs.custom}
        if not (self._is_local and actor.threads == 1):
            options["runtime_env"] = {"env_vars": thread_environment(actor.threads)}
        options |= {"max_restarts": 0, "max_task_retries": 0, "enable_task_events": False}
        spec = {
            "uid": self._uid,
            "name": actor.name,
            "key": key,
            "mailbox": mailbox,
            "path": [os.path.abspath(entry) for entry in sys.path],
            "argv": sys.argv,
            "sources": self._sources,
        }
        actor.handle = self._class.options(**options).remote(spec)
        actor.invoke, actor.repeat = actor.handle.invoke.remote, private_api.direct_call(actor.handle, "repeat")
        actor.key, actor.node, actor.last_wire, actor.num_waiting_requests = key, "", None, 0

    def close(self) -> None:
        """Release the shipped modules."""
        self._sources = None


def kill_process(pid: int, node: str, own_node: str) -> None:
    """Kill the process of an actor on any node, after Ray was asked to end it."""

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

    if node == own_node:
        kill()
    elif ray.is_initialized():
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        ray.remote(kill).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()


def is_death(error: BaseException) -> bool:
    """Return whether Ray's exception means that the actor died, and not only that a call failed."""
    errors = ray.exceptions
    return isinstance(
        error, (errors.RayActorError, errors.NodeDiedError, errors.LocalRayletDiedError, errors.OutOfMemoryError)
    )


def death_reason(text: str) -> str:
    """Return Ray's explanation of a death, without ids and guesses."""
    reason = " ".join(line for line in text.splitlines() if not line.startswith("\t"))
    reason = reason.removeprefix("The actor died unexpectedly before finishing this task. ")
    return reason.split(" Some common causes")[0]
