"""What an actor can ask of the driver: set in every worker process, None in the driver itself."""

from __future__ import annotations

from typing import Any, Protocol

from raceway.engine.base import Ref


class DriverClient(Protocol):
    """The way from a worker process to its driver."""

    uid: str
    """The engine that this process belongs to."""
    actor: str
    """The name of the actor that lives here."""

    def request(self, value: Any, *, parks: bool = False) -> Any:
        """Ask the driver and wait for its answer; with `parks` it may come late, so waiting calls are given back."""

    def put(self, value: Any) -> Ref:
        """Store a value with the driver."""


_client: DriverClient | None = None


def driver_client() -> DriverClient | None:
    """Return the way to the driver, or None in a process that is no worker."""
    return _client


def set_driver_client(value: DriverClient | None) -> None:
    """Set it; called once, by the engine's worker."""
    global _client
    _client = value
