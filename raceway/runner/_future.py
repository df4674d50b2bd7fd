"""Futures of the Runner: in the driver the real thing, in a worker a reference to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from raceway.engine import _codec
from raceway.engine import base as engine
from raceway.engine._handles import Handle, _revive

if TYPE_CHECKING:
    from raceway.runner._hub import Hub
    from raceway.runner._pool import Pool

T = TypeVar("T")


class Future(engine.Future[T]):
    """The result of a call to a service, now or later.

    It can be passed to other calls: as an argument it arrives as the result (the call waits for it); inside a
    container it arrives as a future, and can be waited for there.
    """

    __slots__ = ("_id", "hub", "needs", "pool")

    def __init__(self, hub: Hub, method: str, timeout: float | None = None) -> None:
        super().__init__(hub.engine, None, method, timeout)
        self.hub = hub
        self.pool: Pool | None = None
        self.needs: list[engine.Future[Any]] = []
        """Futures among the arguments that are not there yet."""
        self._id: int | None = None

    def get(self, timeout: float | None = None) -> T:
        """Wait for the result and return it, or raise what the call raised.

        Raises:
            WaitTimeout: it took longer than `timeout` seconds. The call goes on.
        """
        if not self.done():
            self.hub.wait_for([self], timeout)
        return super().result()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the call raised, or None."""
        if not self.done():
            self.hub.wait_for([self], timeout)
        return super().exception()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done; return whether it is."""
        return bool(self.hub.wait([self], None, timeout)[0])

    def __reduce__(self) -> Any:
        # In another process it is a name for this one, which the driver keeps as long as anybody there holds it.
        table = self.hub.table
        with self.hub.engine.lock:
            if self._id is None:
                self._id = table.new(self._forgotten)
                self.hub.futures[self._id] = self
            _codec.note_handle(FutureRef(table, self._id))
        return _revive_future, (table.uid, self._id)

    def _forgotten(self, id: int) -> None:
        self._id = None
        self.hub.futures.pop(id, None)


class FutureRef(Handle):
    """A future, as a worker holds it."""

    __slots__ = ()

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it, or raise what the call raised."""
        return _client().get(self, timeout)

    result = get

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done; return whether it is."""
        return bool(_client().wait([self], None, timeout)[0])

    def done(self) -> bool:
        """Whether there is a result or a failure."""
        return bool(_client().wait([self], 0, 0)[0])

    def cancel(self) -> bool:
        """Take the call back if it has not been handed to a worker yet. Return whether that worked."""
        return bool(_client().cancel(self))

    def __reduce__(self) -> Any:
        _codec.note_handle(self)
        return _revive_future, (self._table.uid, self.id)


def _client() -> Any:
    from raceway.runner._client import Client

    return Client()


def _revive_future(uid: str, id: int) -> Any:
    from raceway.runner._hub import find_future

    future = find_future(uid, id)
    return future if future is not None else _revive(FutureRef, uid, id)
