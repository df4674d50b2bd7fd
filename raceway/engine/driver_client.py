"""The connection from a worker process to its driver: set in every worker, None in the driver itself."""

from __future__ import annotations

from typing import Any, Protocol

from raceway.engine.base import Ref


class DriverClient(Protocol):
    """The requests that a worker process can send to its driver."""

    uid: str
    """The engine that this process belongs to."""
    actor: str
    """The name of the actor that lives here."""

    def request(self, value: Any, *, waits_for_calls: bool = False) -> Any:
        """Send the driver a request and wait for its answer.

        Args:
            value: the request; the handler passed to `Engine.serve` answers it.
            waits_for_calls: whether the answer depends on other calls, so that calls queued for this actor should be
                returned to run on other actors.
        """

    def put(self, value: Any) -> Ref:
        """Store a value with the driver."""


_client: DriverClient | None = None


def driver_client() -> DriverClient | None:
    """Return the connection to the driver, or None in a process that is not a worker."""
    return _client


def set_driver_client(client: DriverClient | None) -> None:
    """Set the connection to the driver; called once, by the engine's worker."""
    global _client
    _client = client
