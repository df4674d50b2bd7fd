"""Finding the session of an open Runner by its name."""

from __future__ import annotations

import threading
from typing import Any

from raceway.engine.driver_client import driver_client
from raceway.errors import ConfigError, RacewayError
from raceway.runner._open_runners import open_backends
from raceway.runner._worker_backend import WorkerBackend

opening = threading.RLock()
"""Held while a Runner opens a session that may be open already, so that two threads do not both open it."""


def find_session(name: str, session: str | None, fail_if_exists: bool) -> Any:
    """Return the backend of an open session, or None if there is none. Called with `opening`.

    Raises:
        ConfigError: `fail_if_exists`, and the session (or, if it is None, a Runner of this name) is open.
    """
    if session is not None and (not isinstance(session, str) or not session):
        raise ConfigError(f"the name of a session must be a string that is not empty, not {session!r}")
    if session is None and not fail_if_exists:
        return None
    backends: list[Any] = [*open_backends.values(), *_session_of_this_worker()]
    for backend in backends:
        if (backend.name == name) if session is None else (backend.run_id == session):
            if fail_if_exists:
                known_as = f"Runner {name!r}" if session is None else f"session {session!r}"
                raise ConfigError(f"the {known_as} is open already, as {backend.run_id!r} of {backend.name!r}")
            return backend
    return None


def _session_of_this_worker() -> list[WorkerBackend]:
    """Return the session that this process is a worker of, if it is."""
    if driver_client() is None:
        return []
    try:
        return [WorkerBackend(*WorkerBackend().request("session"))]
    except RacewayError:  # a worker of an engine without a Runner, or of a Runner that is closed
        return []
