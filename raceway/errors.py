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
├── DeadlockError                    an actor would wait for itself
└── UnknownReference                  a reference that this run does not know
    ├── ForeignReference             it belongs to another Runner
    └── ObjectFreed                  nobody referred to the object any more
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RacewayError(Exception):
    """The root of the tree."""


class ConfigError(RacewayError, ValueError):
    """An argument, option or name that cannot be used."""


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


class DeadlockError(RacewayError):
    """An actor would wait for a call that only it can run."""


class UnknownReference(RacewayError):
    """A reference that this run does not know."""


class ForeignReference(UnknownReference):
    """The reference belongs to another Runner."""


class ObjectFreed(UnknownReference):
    """The object is gone: nobody referred to it any more, or it was freed by hand."""


def unknown(what: str, value: object, choices: Iterable[str], hint: str = "") -> ConfigError:
    """Return the error for a name that is none of `choices`.

    >>> print(unknown("engine", "proces", ["inline", "process", "ray"]))
    unknown engine 'proces'. Did you mean 'process'? Choose from: inline, process, ray.
    """
    names = sorted(choices)
    close = difflib.get_close_matches(str(value), names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return ConfigError(f"unknown {what} {value!r}.{guess} Choose from: {', '.join(names)}.{' ' + hint if hint else ''}")
