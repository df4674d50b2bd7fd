"""The worker's side of a Runner: it has the methods of the driver's side, and sends them as requests to the driver."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from raceway.engine.base import Ref
from raceway.engine.driver_client import DriverClient, driver_client
from raceway.errors import ConfigError, EngineClosed, ForeignReference, RacewayError, WaitTimeout
from raceway.runner._future import RemoteServiceFuture
from raceway.runner._history import CallRecord
from raceway.runner._objects import CachedObject, Deserializer, ObjectRef, not_an_object_ref, object_value
from raceway.runner._open_runners import open_backends


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
        futures = list(futures)
        num_left = len(futures)
        if not futures:
            return
        # The driver keeps the selection as long as this process holds its handle.
        handle, done = self.request("select", futures, timeout, waits_for_calls=True)
        while True:
            if not done:
                raise WaitTimeout(f"none of {num_left} futures was done after {timeout:g} s")
            for index in done:
                num_left -= 1
                yield futures[index]
            if not num_left:
                return
            done = self.request("select_next", handle, timeout, waits_for_calls=True)

    def ref(self, future: RemoteServiceFuture, timeout: float | None) -> ObjectRef:
        """Wait for the result of a future, and return a reference to it."""
        return self.request("ref", future, timeout, waits_for_calls=True)  # type: ignore[no-any-return]

    def history(self) -> list[CallRecord]:
        """Return the latest calls."""
        return self.request("history")  # type: ignore[no-any-return]

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

    def rebuild(self, id: int) -> ObjectRef:
        """Return a reference to the object with this id."""
        return self._backend.request("rebuild_object_ref", id)  # type: ignore[no-any-return]

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


def rebuild_object_ref(uid: str, id: int) -> ObjectRef:
    """Return a reference to the object with this id on the engine `uid`; see `ObjectRef.from_text`."""
    backends = [backend for backend in tuple(open_backends.values()) if backend.table.uid == uid]
    for backend in backends:
        if id in backend.objects.stored or backend is backends[-1]:
            return backend.objects.rebuild(id)
    client = driver_client()
    if client is not None and client.uid == uid:
        return WorkerBackend().objects.rebuild(id)
    if int(uid.split("-")[1]) == os.getpid():
        raise EngineClosed(f"the Runner of object {id} of {uid!r} is closed")
    raise ForeignReference(f"object {id} belongs to the run {uid!r}, which this process is not a part of")
