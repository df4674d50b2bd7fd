"""`Future`: the result of a call, now or later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from raceway.engine._codec import Payload
from raceway.errors import Cancelled, RacewayError, SerializationError

if TYPE_CHECKING:
    from raceway.engine.base import Actor, Engine

T = TypeVar("T")

_log = logging.getLogger(__name__)

PENDING, ENCODED, DECODED, FAILED = range(4)
"""The values of `Future.state`."""


class Future(Generic[T]):
    """The result of a call, now or later. Safe to wait for from several threads."""

    __slots__ = (
        "__weakref__",
        "_callbacks",
        "_content",
        "_engine",
        "actor",
        "cancel_hook",
        "method",
        "started",
        "state",
        "timeout",
    )

    def __init__(
        self,
        engine: Engine,
        actor: Actor | None = None,
        method: str = "",
        timeout: float | None = None,
        on_done: Callable[[Future[T]], None] | None = None,
    ) -> None:
        self.actor = actor
        self.method = method
        self.timeout = timeout
        """Seconds that the call may run before its actor is killed."""
        self.started = False
        """After a failure: whether the call may have started to run."""
        self.cancel_hook: Callable[[Future[T]], bool] | None = None
        """Withdraws the call and returns whether that was possible; called with the engine's lock held."""
        self.state = PENDING
        """PENDING, ENCODED (the result has arrived), DECODED or FAILED."""
        self._engine = engine
        self._content: Any = None  # the payload, the value or the error, depending on the state
        self._callbacks: list[Callable[[Future[T]], None]] | None = None if on_done is None else [on_done]

    def done(self) -> bool:
        """Return whether the call has succeeded or failed."""
        return self.state != PENDING

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result and return it, or raise what the call raised.

        Raises:
            WaitTimeout: the result did not arrive within `timeout` seconds. The call continues.
        """
        if self.state == PENDING:
            self._engine.block(self.done, timeout, self)
        state = self.state
        if state == ENCODED:
            self.decode()
            if self.state == FAILED:
                raise self._failure().with_traceback(None)
        elif state == FAILED:
            raise self._failure().with_traceback(None)  # or each time would add to it, and keep the frames before
        return self._content  # type: ignore[no-any-return]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait, and return what the call raised, or None."""
        if self.state == PENDING:
            self._engine.block(self.done, timeout, self)
        return self._failure() if self.state == FAILED else None

    def cancel(self) -> bool:
        """Withdraw the call if it has not been handed to an actor yet. Return whether it was withdrawn."""
        with self._engine.lock:
            if self.state == PENDING and self.cancel_hook is not None and self.cancel_hook(self):
                self.fail(Cancelled(f"{self!r} was cancelled before it started"))
                return True
            return False

    def add_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Call `callback(self)` when done: now if it is, else on the thread that receives the result. Keep it short."""
        with self._engine.lock:
            if self.state == PENDING:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def remove_done_callback(self, callback: Callable[[Future[T]], None]) -> None:
        """Remove a callback that has not been called."""
        with self._engine.lock:
            if self._callbacks is not None and callback in self._callbacks:
                self._callbacks.remove(callback)

    def __await__(self) -> Generator[Any, None, T]:
        """Let a coroutine wait for the result: `reply = await actor.call("method")`."""
        import asyncio  # here, because it takes longer to import than the rest of this package

        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def set_event(_: Future[T]) -> None:
            loop.call_soon_threadsafe(event.set)

        self.add_done_callback(set_event)
        yield from event.wait().__await__()
        return self.result()

    def __repr__(self) -> str:
        state = ("pending", "done", "done", "failed")[self.state]
        prefix = f"{self.actor.name}." if self.actor is not None else ""
        return f"<Future {prefix}{self.method} {state}>"

    def __reduce__(self) -> Any:
        raise SerializationError("a future of an engine cannot be sent to another process. Use the Runner's futures.")

    # Completing a future: for engines and for users of `create_future`. Called with the engine's lock held.

    def set_encoded(self, payload: Payload) -> None:
        """Set the result, still encoded."""
        self._complete(ENCODED, payload)

    def set_result(self, value: T) -> None:
        """Set the result."""
        self._complete(DECODED, value)

    def fail(self, error: BaseException | Callable[[], BaseException]) -> None:
        """Set the failure, or a function that builds it when it is first needed."""
        self._complete(FAILED, error)

    def _complete(self, state: int, content: object) -> None:
        if self.state != PENDING:
            return
        self._content = content
        self.state = state
        self.cancel_hook = None
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            try:
                callback(self)
            except Exception:  # neither the other callbacks nor the thread that receives results may suffer from it
                _log.exception("a callback of %r failed", self)

    def payload(self) -> Payload | None:
        """Return the result as it arrived, or None if it failed or was decoded already."""
        return self._content if self.state == ENCODED else None

    def decode(self) -> None:
        """Decode the result that has arrived, ahead of time; if that fails, `result` raises the error."""
        with self._engine.lock:
            if self.state == ENCODED:
                try:
                    self._content, self.state = self._engine.decode(self._content), DECODED
                except Exception as error:
                    self._content, self.state = _undecodable(self, error), FAILED

    def _failure(self) -> BaseException:
        if not isinstance(self._content, BaseException):
            self._content = self._content()
        return self._content


def _undecodable(future: Future[Any], error: Exception) -> RacewayError:
    failure = SerializationError(
        f"the result of {future!r} arrived but cannot be unpickled here: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
