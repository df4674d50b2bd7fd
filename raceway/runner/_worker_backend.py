"""The worker's side of a Runner: it has the methods of the driver's side, and sends them as requests to the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raceway.engine.base import Ref
from raceway.engine.driver_client import DriverClient, driver_client
from raceway.errors import ConfigError, RacewayError, WaitTimeout
from raceway.runner._future import RemoteServiceFuture
from raceway.runner._objects import CachedObject, Deserializer, ObjectRef, not_an_object_ref, object_value


class WorkerBackend:
    """The counterpart of `DriverBackend` in a worker process.

    Args:
        run_id: the run to use, which the driver checks; empty for the run that this process works for.
        name: name of the Runner.
    """

    def __init__(self, run_id: str = "", name: str = "") -> None:
        self.run_id = run_id
        self.name = name
        self.objects = WorkerObjects(self)

    @property
    def driver(self) -> DriverClient:
        """The connection to the driver."""
        client = driver_client()
        if client is None:
            raise RacewayError(f"this process is not a worker of the Runner {self.name!r}, or that Runner is closed")
        return client

    def request(self, verb: str, *args: Any, waits_for_calls: bool = False) -> Any:
        """Send a request to the driver, and return its answer."""
        return self.driver.request((self.run_id, verb, args), waits_for_calls=waits_for_calls)

    def submit(self, service: int, method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> RemoteServiceFuture:
        """Call a method of a service."""
        return self.request("submit", service, method, tuple(args), dict(kwargs))[0]  # type: ignore[no-any-return]

    def get(self, futures: RemoteServiceFuture | Sequence[RemoteServiceFuture], timeout: float | None) -> Any:
        """Return the result of a future, or of each in order."""
        if isinstance(futures, RemoteServiceFuture):
            return self.request("get", [futures], timeout, waits_for_calls=True)[0]
        return self.request("get", list(futures), timeout, waits_for_calls=True)

    def wait(
        self, futures: Sequence[RemoteServiceFuture], count: int | None, timeout: float | None
    ) -> tuple[list[RemoteServiceFuture], list[RemoteServiceFuture]]:
        """Block until `count` (default: all) futures are done; return the done and the pending ones."""
        futures = list(futures)
        done = self.request("wait", futures, count, timeout, waits_for_calls=timeout != 0)
        return (
            [future for future, is_done in zip(futures, done, strict=True) if is_done],
            [future for future, is_done in zip(futures, done, strict=True) if not is_done],
        )

    def select(self, futures: Sequence[RemoteServiceFuture], timeout: float | None) -> Iterator[RemoteServiceFuture]:
        """Yield the futures in the order of their completion."""
        pending = list(futures)
        while pending:
            done, pending = self.wait(pending, 1, timeout)
            if not done:
                raise WaitTimeout(f"none of {len(pending)} futures was done after {timeout:g} s")
            yield from done

    def cancel(self, future: RemoteServiceFuture) -> bool:
        """Cancel a call; return whether it was cancelled."""
        return bool(self.request("cancel", future))

    def create_service(self, *_: Any, **__: Any) -> Any:
        """Raise ConfigError: only the driver, which outlives its workers, creates services."""
        raise ConfigError("a service can be created only by the program that opened the Runner, not inside a worker")

    def close(self) -> None:
        """Do nothing: the driver closes the Runner."""


class WorkerObjects:
    """Access to the objects of a Runner from a worker; the counterpart of `ObjectStore`."""

    def __init__(self, backend: WorkerBackend) -> None:
        self._backend = backend

    def put(self, value: Any) -> Ref:
        """Store a value."""
        return self._backend.driver.put(value)

    def create(self, base: Ref, max_size: float) -> ObjectRef:
        """Create an object from a stored value."""
        return self._backend.request("create_object", base, max_size)  # type: ignore[no-any-return]

    def read(self, ref: ObjectRef, deserializer: Deserializer | None) -> Any:
        """Return the latest state of an object, transferring only the parts that are new to this process."""
        # Without a deserializer the caller owns the value, so it must not be the cached one.
        cached = self.fetch(ref) if deserializer is not None else self._fetch_into(CachedObject(), ref)
        return object_value(ref, cached, deserializer)

    def fetch(self, ref: ObjectRef) -> CachedObject:
        """Update this process's copy of an object, and return a snapshot of it."""
        return self._fetch_into(ref.table.cache.setdefault(ref.id, CachedObject()), ref)

    def _fetch_into(self, cached: CachedObject, ref: ObjectRef) -> CachedObject:
        if not isinstance(ref, ObjectRef):
            raise not_an_object_ref(ref)
        with cached.lock:
            cached.apply(ref, self._backend.request("read_object", ref, cached.epoch, cached.num_seen))
            return cached.snapshot()

    def update(self, ref: ObjectRef, base: Ref) -> ObjectRef:
        """Replace an object."""
        self._backend.request("update_object", ref, base)
        return ref

    def patch(self, ref: ObjectRef, patch: Ref, size: float) -> ObjectRef:
        """Append to an object."""
        self._backend.request("patch_object", ref, patch, size)
        return ref

    def replace_folded(self, ref: ObjectRef, epoch: int, num_folded: int, base: Ref) -> bool:
        """Replace the base and the patches that were folded into the new one; return False if the epoch has changed."""
        return bool(self._backend.request("replace_folded", ref, epoch, num_folded, base))
