"""One call: reading the references among its arguments, running it, and encoding its error."""

from __future__ import annotations

import traceback
from bdb import BdbQuit
from collections.abc import Callable
from typing import Any

import numpy as np

from raceway.engine import _codec
from raceway.engine._codec import Payload
from raceway.errors import INTERRUPTS, RemoteError

_NO_DEBUGGER = "a debugger cannot be used in a worker, which has no terminal. Use the inline engine (--local)."


class ArgRef:
    """Stands for a `Ref` among the arguments of an encoded call; replaced by its value where the call runs."""

    __slots__ = ("id",)

    def __init__(self, id: int) -> None:
        self.id = id

    def __reduce__(self) -> tuple[Any, ...]:
        return ArgRef, (self.id,)


class ActorContext:
    """An actor's object, and the guests beside it: other objects in its process, such as a flow's shards."""

    __slots__ = ("guests", "object")

    def __init__(self, object: Any) -> None:
        self.object = object
        self.guests: dict[Any, Any] = {}


def run_call(
    context: ActorContext, call: tuple[Any, tuple[Any, ...], dict[str, Any]], read: Callable[[int], Any]
) -> Any:
    """Run a decoded call, after reading the references among its arguments.

    Args:
        context: where it runs.
        call: its callee, args and kwargs. The callee is the name of a method of the actor's object; or the names of a
            guest and of a method of it, which returns None if there is no such guest; or a function of the context.
        read: reads a stored value by its id.
    """
    method, args, kwargs = call
    for arg in args:
        if type(arg) is ArgRef:
            args = tuple(read(arg.id) if type(arg) is ArgRef else arg for arg in args)
            break
    if kwargs:
        kwargs = {key: read(arg.id) if type(arg) is ArgRef else arg for key, arg in kwargs.items()}
    if type(method) is str:
        return getattr(context.object, method)(*args, **kwargs)
    if type(method) is tuple:
        guest = context.guests.get(method[0])
        return None if guest is None else getattr(guest, method[1])(*args, **kwargs)
    return method(context, *args, **kwargs)


def method_name(method: Any) -> str:
    """Return the name of a called method or function, for errors.

    >>> method_name("step"), method_name(("shard", "pull")), method_name(len)
    ('step', 'pull', 'len')
    """
    method = method[1] if isinstance(method, tuple) else method
    return method if isinstance(method, str) else str(getattr(method, "__name__", type(method).__name__))


def encode_error(error: BaseException, actor: str, method: str, skip: int = 1) -> Payload:
    """Encode an exception: its traceback as text, and the exception itself if it can be pickled and unpickled.

    Args:
        error: the exception.
        actor: the name of the actor that raised it.
        method: the name of the method that raised it.
        skip: the number of outer frames to leave out of the traceback: the engine's own, of no use to the user.
    """
    trace = error.__traceback__
    for _ in range(skip):
        trace = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    text = "".join(traceback.format_exception(type(error), error, trace))
    # Not SystemExit and the like: they must not end the driver.
    can_travel = isinstance(error, Exception) and not isinstance(error, INTERRUPTS)
    try:
        message = _NO_DEBUGGER if isinstance(error, BdbQuit) else str(error)
    except Exception:  # it would fail in the driver as well
        message, can_travel = "(its message cannot be shown)", False
    remote_args = (type(error).__qualname__, message, actor, method, text)
    if isinstance(error.__cause__, RemoteError):  # raised in another process, whose traceback says more
        remote_args = error.__cause__.args
    if can_travel:
        try:
            payload = _codec.encode((error, remote_args))
            if type(_codec.decode(payload)[0]) is type(error):
                return payload
        except Exception:
            pass  # it cannot be pickled or unpickled: send only its text
    return _codec.encode((None, remote_args))


def decode_error(payload: Payload) -> BaseException:
    """Return the exception that `encode_error` encoded, with the remote traceback as its cause."""
    try:
        error, remote_args = _codec.decode(payload)
    except Exception as failure:
        return RemoteError(
            type(failure).__qualname__, f"the error of a call cannot be unpickled: {failure}", "?", "?", ""
        )
    remote = RemoteError(*remote_args)
    if error is None:
        return remote
    error.__cause__ = remote
    return error  # type: ignore[no-any-return]


def copy_buffers(payload: Payload) -> Payload:
    """Return the payload with copies of its buffers, so that the caller may change the originals."""
    buffers = []
    for buffer in payload.buffers:
        copy = np.frombuffer(buffer, np.uint8).copy()
        copy.flags.writeable = False
        buffers.append(copy)
    return Payload(payload.body, buffers, payload.handles)
