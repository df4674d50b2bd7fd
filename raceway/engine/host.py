"""What an actor can ask of the driver: set in every worker process, None in the driver itself."""

from __future__ import annotations

from typing import Any, Protocol

from raceway.engine.base import Ref


class Host(Protocol):
    """The way from a worker process to its driver."""

    uid: str
    """The engine that this process belongs to."""
    actor: str
    """The name of the actor that lives here."""

    def request(self, value: Any, *, parks: bool = False) -> Any:
        """Ask the driver and wait for its answer; with `parks` it may come late, so waiting calls are given back."""

    def put(self, value: Any) -> Ref:
        """Store a value with the driver."""


_host: Host | None = None


def host() -> Host | None:
    """Return the way to the driver, or None in a process that is no worker."""
    return _host


def set_host(value: Host | None) -> None:
    """Set it; called once, by the engine's worker."""
    global _host
    _host = value
