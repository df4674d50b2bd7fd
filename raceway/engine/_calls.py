"""One call and its outcome: references among its arguments, running it, and its error on the way back."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from raceway.engine import _codec
from raceway.engine._codec import Payload
from raceway.errors import RemoteError


class ArgRef:
    """Stands in an encoded call for a Ref among the arguments: where the call runs it becomes the value."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return ArgRef, (self.id,)


class Home:
    """Where an actor's object lives, with room beside it for what functions sent there keep (a flow its shards)."""

    __slots__ = ("guests", "object")

    def __init__(self, object: Any) -> None:
        self.object = object
        self.guests: dict[Any, Any] = {}


def run_call(home: Home, call: tuple[Any, tuple[Any, ...], dict[str, Any]], read: Callable[[int], Any]) -> Any:
    """Run one decoded call, reading the references among its arguments.

    What is called is a method of the actor's object, by name; a method of a guest, by both their names (None if the
    guest is not there); or a function of the home.
    """
    method, args, kwargs = call
    for arg in args:
        if type(arg) is ArgRef:
            args = tuple(read(arg.id) if type(arg) is ArgRef else arg for arg in args)
            break
    if kwargs:
        kwargs = {key: read(arg.id) if type(arg) is ArgRef else arg for key, arg in kwargs.items()}
    if type(method) is str:
        return getattr(home.object, method)(*args, **kwargs)
    if type(method) is tuple:
        guest = home.guests.get(method[0])
        return None if guest is None else getattr(guest, method[1])(*args, **kwargs)
    return method(home, *args, **kwargs)


def name_of(method: Any) -> str:
    """Return what a called method or function is named in errors."""
    method = method[1] if isinstance(method, tuple) else method
    return method if isinstance(method, str) else str(getattr(method, "__name__", type(method).__name__))


def describe_error(error: BaseException, actor: str, method: str, skip: int = 1) -> Payload:
    """Encode an exception with its traceback as text; the exception itself too if it survives the journey."""
    trace = error.__traceback__
    for _ in range(skip):  # the engine's own frames say nothing to the user
        trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    text = "".join(traceback.format_exception(type(error), error, trace))
    travels = isinstance(error, Exception)  # not SystemExit and the like: they must not end the driver
    try:
        message = str(error)
    except Exception:  # nor one that fails whoever wants to see it
        message, travels = "(its message cannot be shown)", False
    told = (type(error).__qualname__, message, actor, method, text)
    if isinstance(error.__cause__, RemoteError):  # passed on: where it came from says more
        told = error.__cause__.args
    if travels:
        try:
            payload = _codec.encode((error, told))
            if type(_codec.decode(payload)[0]) is type(error):
                return payload
        except Exception:
            pass  # it cannot be pickled, or not unpickled: its text goes alone
    return _codec.encode((None, told))


def revive_error(payload: Payload) -> BaseException:
    """Return the exception that `describe_error` encoded, with the remote traceback as its cause."""
    try:
        error, told = _codec.decode(payload)
    except Exception as failure:
        return RemoteError(
            type(failure).__qualname__, f"the error of a call cannot be unpickled: {failure}", "?", "?", ""
        )
    remote = RemoteError(*told)
    if error is None:
        return remote
    error.__cause__ = remote
    return error  # type: ignore[no-any-return]


def owned(payload: Payload) -> Payload:
    """Copy buffers that belong to the caller, so that what it does with them later is not seen."""
    buffers = []
    for buffer in payload.buffers:
        copy = np.frombuffer(buffer, np.uint8).copy()
        copy.flags.writeable = False
        buffers.append(copy)
    return Payload(payload.body, buffers, payload.handles)
