"""The exceptions that Raceway raises.

RacewayError
├── ConfigError (ValueError)         an invalid argument, option or name
├── WaitTimeout (TimeoutError)       the caller's timeout expired; the work continues
├── Cancelled                        the call was cancelled before it started
├── SerializationError (TypeError)   a value cannot be pickled; names the attribute at fault
├── SharedMemoryError (MemoryError)  the engine's shared-memory budget is used up
├── ConnectionFailed (ConnectionError)  a cluster cannot be joined: says what to set
├── ResourceError                    more resources were requested than exist
├── EngineClosed                     the engine (or Runner) has been closed
├── ActorError                       an actor failed, not one of its calls
│   ├── ActorStartError              its process or its constructor failed
│   ├── ActorDied                    it was killed, crashed or exited
│   │   └── DeadlineExceeded         it was killed because a call ran too long
│   └── RestartsExhausted            it died more often than its restart budget allows
├── RemoteError                      a call raised in another process; the cause of the original exception
├── FlowError                        a flow failed
│   ├── OperatorError                an operator or source raised; says which, where, and on which item
│   └── ShardFailed                  a shard's actor died, and the failure policy does not tolerate it
├── CallbackError                    a callback raised; names its class and method
├── EnvironmentFailed                an environment raised, or returned something no policy can use
├── CheckpointError                  a checkpoint is missing, incomplete, corrupt, or of another run
├── DatasetError                     a dataset is missing, corrupt, empty, or of a newer version
├── ReplayEmpty                      a sample was requested from an empty replay buffer
├── DeadlockError                    an actor would wait for itself
└── UnknownReference                 a reference that does not belong to this run
    ├── ForeignReference             it belongs to another Runner
    └── ObjectFreed                  the object was freed
"""

from __future__ import annotations

import os
import pickle
import traceback
from bdb import BdbQuit
from types import TracebackType
from typing import Any

_FLOW = os.path.join(os.path.dirname(__file__), "flow", "")

INTERRUPTS = (KeyboardInterrupt, BdbQuit)
"""Raised by the user, with Ctrl-C or by quitting a debugger: never a failure of the code in which they are raised.

`BdbQuit` is an `Exception`, so every handler that takes exceptions of a user's code for failures must let it pass.
"""


class RacewayError(Exception):
    """Base class of all exceptions of Raceway."""


class ConfigError(RacewayError, ValueError):
    """An argument, option or name is invalid."""


class CheckpointError(RacewayError):
    """A checkpoint cannot be restored: says which file, and why."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.reason)


class DatasetError(RacewayError):
    """A dataset cannot be read or written: says which file, and why."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.reason)


class WaitTimeout(RacewayError, TimeoutError):
    """The caller's timeout expired. The work continues, and can be waited for again."""


class Cancelled(RacewayError):
    """The call was cancelled before it started."""


class SerializationError(RacewayError, TypeError):
    """A value cannot be sent to another process."""


class SharedMemoryError(RacewayError, MemoryError):
    """The engine's shared-memory budget is used up, or the machine has no memory left for it."""


class ConnectionFailed(RacewayError, ConnectionError):
    """A cluster cannot be joined: its address, the token, or the versions of Ray and Python are wrong."""


class ResourceError(RacewayError):
    """More resources were requested than exist, so the actor could never start."""


class EngineClosed(RacewayError):
    """The engine or Runner has been closed."""


class ActorError(RacewayError):
    """An actor failed, not one of its calls."""

    def __init__(self, message: str, actor: str = "") -> None:
        super().__init__(message)
        self.actor = actor

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.actor)


class ActorStartError(ActorError):
    """The actor's process could not be started, or its constructor raised."""


class ActorDied(ActorError):
    """The actor was killed, crashed or exited; its state is lost."""


class DeadlineExceeded(ActorDied):
    """A call ran longer than its deadline, so its actor was killed."""


class RestartsExhausted(ActorError):
    """The actor died more often than its restart budget allows."""


class RemoteError(RacewayError):
    """A call raised in another process. Holds the actor, the method and the remote traceback as text.

    It is the ``__cause__`` of the original exception. If that cannot be sent to the caller, the RemoteError is raised
    instead: the exception cannot be pickled, or is one like ``SystemExit`` that must not end the caller.
    """

    def __init__(self, kind: str, message: str, actor: str, method: str, traceback: str) -> None:
        super().__init__(kind, message, actor, method, traceback)
        self.kind = kind
        self.message = message
        self.actor = actor
        self.method = method
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.kind} in {self.actor}.{self.method}: {self.message}\n\n{self.traceback}"


class ReplayEmpty(RacewayError):
    """A sample was requested from a replay buffer that is still empty."""


class FlowError(RacewayError):
    """A flow failed: it cannot continue, or a part of it raised."""


class OperatorError(FlowError):
    """An operator or source of a flow raised. The message ends with the user's own traceback.

    Attributes:
        operator: the operator's label, as `explain` shows it.
        where: file and line at which it was added to the flow.
        shard: the shard it ran on, or None in the driver.
        item: the item it was called with, as text.
        original: the exception it raised, or None if that cannot be pickled; also the `__cause__`.
        frames: the user's frames, for `pdb.post_mortem(error.frames)`, if it ran in this process.
    """

    frames: TracebackType | None = None

    def __init__(
        self, text: str, operator: str, where: str, shard: int | None, item: str, original: BaseException | None
    ) -> None:
        super().__init__(text)
        self.operator = operator
        self.where = where
        self.shard = shard
        self.item = item
        self.original = self.__cause__ = original

    @classmethod
    def wrap(
        cls, error: Exception, operator: str, where: str, shard: int | None, item: tuple[int, object] | None
    ) -> OperatorError:
        """Return the OperatorError for an exception that an operator raised.

        Args:
            error: the exception.
            operator: the operator's label.
            where: file and line at which it was added to the flow.
            shard: the shard it ran on, or None in the driver.
            item: the number of the item in its stream and the item itself; None for a source.

        Raises:
            BdbQuit: if that is the exception.
        """
        if isinstance(error, OperatorError):
            return error  # the operator itself runs a flow
        if isinstance(error, INTERRUPTS):
            raise error
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FLOW):
            frames = frames.tb_next
        item_text = "" if item is None else _truncated_repr(item[1])
        place = "in the driver" if shard is None else f"on shard {shard}"
        text = f"{operator} failed {place}" + ("" if item is None else f", item {item[0]}: {item_text}")
        text += f"\n  added at {where}"
        if isinstance(error, StopIteration) or isinstance(error.__cause__, StopIteration):
            text += "\n  A StopIteration does not end a stream. Use take(), or raise StreamEnd in a source's method."
        text += "\n\n" + "".join(traceback.format_exception(type(error), error, frames))
        failure = cls(text, operator, where, shard, item_text, error)
        failure.frames, error.__traceback__ = frames, None  # the text contains it: the cause would show it again
        return failure

    def __reduce__(self) -> tuple[object, ...]:
        original = self.original
        try:
            pickle.loads(pickle.dumps(original))
        except Exception:  # the text describes it
            original = None
        return type(self), (str(self), self.operator, self.where, self.shard, self.item, original)


def _truncated_repr(value: object, max_length: int = 200) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__qualname__} whose repr fails"
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


class ShardFailed(FlowError):
    """A shard's actor died, and the failure policy is to raise, or its budget is used up. The `__cause__` says why."""


class CallbackError(RacewayError):
    """A callback raised. The message names its class and method, and ends with the user's own traceback.

    Attributes:
        callback: the name of its class.
        method: the method that raised.
        frames: the user's frames, for `pdb.post_mortem(error.frames)`, if it was called in this process.
    """

    frames: TracebackType | None = None

    def __init__(self, problem: str, callback: str, method: str) -> None:
        super().__init__(f"callback {callback}.{method} raised {problem}")
        self.problem, self.callback, self.method = problem, callback, method

    @classmethod
    def wrap(cls, error: Exception, callback: str, method: str) -> CallbackError:
        """Return the error for an exception that a method raised, which is called by the frame that caught it."""
        trace = error.__traceback__
        frames = trace.tb_next if trace is not None and trace.tb_next is not None else trace
        text = "".join(traceback.format_exception(type(error), error, frames))
        failure = cls(f"{type(error).__name__}: {error}\n\n{text}", callback, method)
        failure.frames, error.__traceback__ = frames, None  # the text contains it: the cause would show it again
        return failure

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problem, self.callback, self.method)


class EnvironmentFailed(RacewayError):
    """An environment raised, or returned NaN or a value that does not fit its spaces.

    Attributes:
        problem: what happened, without the place.
        slot: the index of the environment in its vector; -1 if unknown.
        place: the worker, shard, environment, episode and step, as text.
        kind: what failures that are logged together have in common: the method and its exception or invalid value.
        num_failures: if it exceeds the failure budget, the failures that no batch has reported, this one included.
    """

    def __init__(
        self, problem: str, slot: int, place: str = "", kind: str = "environment failure", num_failures: int = 0
    ) -> None:
        super().__init__(f"{problem}\n  in {place}" if place else problem)
        self.problem, self.slot, self.place, self.kind, self.num_failures = problem, slot, place, kind, num_failures

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problem, self.slot, self.place, self.kind, self.num_failures)


class DeadlockError(RacewayError):
    """An actor would wait for a call that only it can run."""


class UnknownReference(RacewayError):
    """A reference does not belong to this run."""


class ForeignReference(UnknownReference):
    """The reference belongs to another Runner."""


class ObjectFreed(UnknownReference):
    """The object was freed: no process referred to it any more."""
