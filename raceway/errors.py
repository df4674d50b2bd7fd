"""Every exception that Raceway raises on purpose.

RacewayError
├── ConfigError (ValueError)         an argument, option or name that cannot be used
├── WaitTimeout (TimeoutError)       the caller's own timeout ran out; the work goes on
├── Cancelled                        the call was cancelled before it started
├── SerializationError (TypeError)   a value cannot travel; names the attribute at fault
├── SharedMemoryError (MemoryError)  the engine's shared-memory budget is used up
├── ResourceError                    more resources asked for than there are
├── EngineClosed                     the engine (or Runner) has been closed
├── ActorError                       an actor, not a call, went wrong
│   ├── ActorStartError              its process or its constructor failed
│   ├── ActorDied                    it was killed, crashed, or exited
│   │   └── DeadlineExceeded         it was killed because a call ran too long
│   └── RestartsExhausted            it died more often than its budget allows
├── RemoteError                      a call raised; also the cause of the original where that could travel
├── FlowError                        a flow went wrong
│   ├── OperatorError                an operator or source raised; says which, where, on what item
│   └── ShardFailed                  a shard's actor died and the failure policy says to raise, or is used up
├── EnvironmentFailed                an environment raised, or gave what no policy can use
├── CheckpointError                  a checkpoint is missing, torn, corrupt, or not this run's
├── ReplayEmpty                      something was to be drawn from a replay buffer that holds nothing
├── DeadlockError                    an actor would wait for itself
└── UnknownReference                  a reference that this run does not know
    ├── ForeignReference             it belongs to another Runner
    └── ObjectFreed                  nobody referred to the object any more
"""

from __future__ import annotations

import logging
import os
import pickle
import traceback
from types import TracebackType
from typing import Any

_FLOW = os.path.join(os.path.dirname(__file__), "flow", "")
_log = logging.getLogger(__name__)


class RacewayError(Exception):
    """The root of the tree."""


class ConfigError(RacewayError, ValueError):
    """An argument, option or name that cannot be used."""


class CheckpointError(RacewayError):
    """A checkpoint that cannot be gone on from: says which file, and why."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason

    def __reduce__(self) -> Any:
        return type(self), (self.path, self.reason)


class WaitTimeout(RacewayError, TimeoutError):
    """The caller's timeout ran out. What it waited for goes on and can be waited for again."""


class Cancelled(RacewayError):
    """The call was cancelled before it started."""


class SerializationError(RacewayError, TypeError):
    """A value cannot be sent to another process."""


class SharedMemoryError(RacewayError, MemoryError):
    """The engine's shared-memory budget is used up, or the machine has no memory left for it."""


class ResourceError(RacewayError):
    """More resources were asked for than there are, so the actor could never start."""


class EngineClosed(RacewayError):
    """The engine or Runner has been closed."""


class ActorError(RacewayError):
    """An actor, not one of its calls, went wrong."""

    def __init__(self, message: str, actor: str = "") -> None:
        super().__init__(message)
        self.actor = actor

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.actor)


class ActorStartError(ActorError):
    """The actor's process could not be started, or its constructor raised."""


class ActorDied(ActorError):
    """The actor was killed, crashed or exited; its state is gone."""


class DeadlineExceeded(ActorDied):
    """A call ran longer than its deadline, so its actor was killed."""


class RestartsExhausted(ActorError):
    """The actor died more often than its restart budget allows."""


class RemoteError(RacewayError):
    """What a call raised in another process: actor, method and the traceback there as text.

    It is the ``__cause__`` of the original exception when that could travel, and raised itself when it could not (an
    exception that cannot be pickled, or one like ``SystemExit`` that must not end the caller).
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
    """Something was to be drawn from a replay buffer that holds nothing yet."""


class FlowError(RacewayError):
    """A flow went wrong: it cannot go on, or a part of it failed."""


class OperatorError(FlowError):
    """An operator or source of a flow raised. Its text ends with the user's own traceback.

    Attributes:
        operator: the operator's label, as the plan shows it.
        where: file and line where it was added to the flow.
        shard: the shard it ran on, or None in the driver.
        item: the item it was given, as text.
        original: what it raised, where that could travel; also the `__cause__`.
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
    def of(
        cls, error: Exception, operator: str, where: str, shard: int | None, item: tuple[int, object] | None
    ) -> OperatorError:
        """Return the error that tells of `error`. `item` is its number in its stream and the item itself."""
        if isinstance(error, OperatorError):
            return error  # of a flow inside the operator
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_FLOW):
            frames = frames.tb_next
        shown = "" if item is None else _shown(item[1])
        place = "in the driver" if shard is None else f"on shard {shard}"
        text = f"{operator} failed {place}" + ("" if item is None else f", item {item[0]}: {shown}")
        text += f"\n  added at {where}"
        if isinstance(error, StopIteration) or isinstance(error.__cause__, StopIteration):
            text += "\n  A StopIteration does not end a stream. Use take(), or raise StreamEnd in a source's method."
        text += "\n\n" + "".join(traceback.format_exception(type(error), error, frames))
        failure = cls(text, operator, where, shard, shown, error)
        failure.frames, error.__traceback__ = frames, None  # the text has it: as the cause it would be shown twice
        return failure

    def __reduce__(self) -> tuple[object, ...]:
        original = self.original
        try:
            pickle.loads(pickle.dumps(original))
        except Exception:  # the text tells of it
            original = None
        return type(self), (str(self), self.operator, self.where, self.shard, self.item, original)


def _shown(value: object, most: int = 200) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__qualname__} whose repr fails"
    return text if len(text) <= most else text[: most - 3] + "..."


class ShardFailed(FlowError):
    """A shard's actor died, and the failure policy says to raise or has no budget left. The `__cause__` says why."""


class EnvironmentFailed(RacewayError):
    """An environment raised, or gave NaN or something of another shape than its spaces say.

    Attributes:
        slot: which environment of its vector; -1 if a vector does not tell.
        place: where it was: the worker, shard, environment, episode and step, as text.
    """

    def __init__(self, problem: str, slot: int, place: str = "") -> None:
        super().__init__(f"{problem}\n  in {place}" if place else problem)
        self.problem, self.slot, self.place = problem, slot, place

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problem, self.slot, self.place)


class DeadlockError(RacewayError):
    """An actor would wait for a call that only it can run."""


class UnknownReference(RacewayError):
    """A reference that this run does not know."""


class ForeignReference(UnknownReference):
    """The reference belongs to another Runner."""


class ObjectFreed(UnknownReference):
    """The object is gone: nobody referred to it any more, or it was freed by hand."""
