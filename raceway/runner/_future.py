"""Futures of calls to services: in the driver the future itself, in a worker a reference to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from raceway.engine.base import Future, Handle, rebuild_handle, register_handle
from raceway.runner._open_runners import find_future

if TYPE_CHECKING:
    from raceway.runner._driver_backend import DriverBackend
    from raceway.runner._objects import ObjectRef
    from raceway.runner._pool import WorkerPool

T = TypeVar("T")


class ServiceFuture(Future[T]):
    """The result of a call to a service, now or later.

    It can be passed to other calls: as an argument it arrives as the result (the call waits for it); inside a
    container it arrives as a future that the worker can wait for.
    """

    __slots__ = ("_id", "_ref", "backend", "dependencies", "pool")

    def __init__(self, backend: DriverBackend, method: str, timeout: float | None = None) -> None:
        super().__init__(backend.engine, None, method, timeout)
        self.backend = backend
        self.pool: WorkerPool | None = None
        self.dependencies: list[Future[Any]] = []
        """Futures among the arguments that are not done yet."""
        self._id: int | None = None
        self._ref: ObjectRef | None = None

    def get(self, timeout: float | None = None) -> T:
        """Wait for the result and return it, or raise the call's exception.

        Raises:
            WaitTimeout: the call is not done after `timeout` seconds. It continues.
        """
        if not self.done():
            self.backend.wait_for([self], timeout)
        return super().result()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return the call's exception, or None if it succeeded."""
        if not self.done():
            self.backend.wait_for([self], timeout)
        return super().exception()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call is done; return whether it is."""
        return bool(self.backend.wait([self], None, timeout)[0])

    def ref(self, timeout: float | None = None) -> ObjectRef:
        """Wait for the result, and return a reference to it as an object of the Runner: the same one each time.

        The object is independent of the future: it can be replaced and appended to, and named by its text.

        Raises:
            WaitTimeout: the call is not done after `timeout` seconds. It continues.
        """
        if not self.done():
            self.backend.wait_for([self], timeout)
        if self._ref is None:
            self._ref = self.backend.objects.create_from_result(self)
        return self._ref

    def __reduce__(self) -> Any:
        # Another process gets a reference; the driver keeps the future as long as any process holds one.
        table = self.backend.table
        with self.backend.engine.lock:
            if self._id is None:
                self._id = table.new_id(self._on_released)
                self.backend.futures[self._id] = self
            register_handle(RemoteServiceFuture(table, self._id))
        return _rebuild_future, (table.uid, self._id)

    def _on_released(self, id: int) -> None:
        self._id = None
        self.backend.futures.pop(id, None)


class RemoteServiceFuture(Handle):
    """A worker's reference to a future."""

    __slots__ = ()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it, or raise the call's exception."""
        return _worker_backend().get(self, timeout)

    result = get

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the call is done; return whether it is."""
        return bool(_worker_backend().wait([self], None, timeout)[0])

    def ref(self, timeout: float | None = None) -> ObjectRef:
        """Wait for the result, and return a reference to it as an object of the Runner."""
        return _worker_backend().ref(self, timeout)  # type: ignore[no-any-return]

    def done(self) -> bool:
        """Whether the call has a result or has failed."""
        return bool(_worker_backend().wait([self], 0, 0)[0])

    def cancel(self) -> bool:
        """Cancel the call unless it was sent to a worker already. Return whether it was cancelled."""
        return bool(_worker_backend().cancel(self))

    def __reduce__(self) -> Any:
        register_handle(self)
        return _rebuild_future, (self.table.uid, self.id)


def _worker_backend() -> Any:
    from raceway.runner._worker_backend import WorkerBackend

    return WorkerBackend()


def _rebuild_future(uid: str, id: int) -> Any:
    future = find_future(uid, id)
    return future if future is not None else rebuild_handle(RemoteServiceFuture, uid, id)
