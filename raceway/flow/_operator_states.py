"""The state of operators in the driver: every run of a flow has its own, although there is one object.

An operator on a shard or an actor is a copy, so its state belongs to the run. In the driver it is the program's own
object, which the program may read, and which may share a learner with other operators, so it cannot be copied. Instead,
a run starts it from the state it had when the flow was first started, and two runs that take turns swap their states.

What an operator's state is, `raceway.state` defines. What it only refers to, such as a network, is not part of it.
"""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from raceway import state as states

_UNKNOWN = object()


def operator_object(function: Callable[..., Any]) -> Any:
    """Return the object whose state belongs to a run; None for functions and methods, which change other objects.

    >>> operator_object(len) is operator_object([].append) is None
    True
    """
    while isinstance(function, partial):
        function = function.func
    return None if inspect.isroutine(function) or isinstance(function, type) else function


class OperatorState:
    """The initial state of an operator, and which run's state it has now. Calls of the operator exclude each other."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        operator = operator_object(function)
        self._operator = None if getattr(operator, "shared_by_runs", False) else operator
        self._is_plain = not states.has_state_methods(operator)
        self._initial: Any = _UNKNOWN
        self._left: dict[str, Any] = {}  # the attributes as the last run left them
        self.owner: OperatorUse | None = None
        self.lock = threading.RLock()

    def __reduce__(self) -> Any:
        return type(self), (self._function,)

    def switch_to(self, use: OperatorUse) -> None:
        """Give the operator the state of a run. Called with the lock."""
        previous, self.owner = self.owner, use
        if self._operator is None:
            return
        if previous is not None and not previous.closed:
            previous.saved = self._read() if self._is_plain else copy.deepcopy(self._read())
        elif self._initial is _UNKNOWN:
            self._initial = copy.deepcopy(self._read())
            return  # the first run starts from it
        else:
            self._adopt_changes()
        self._write(copy.deepcopy(self._initial) if use.saved is _UNKNOWN else use.saved)
        use.saved = None

    def _read(self) -> Any:
        """Return the operator's state: for a plain object, the attributes with plain data, which keep their types."""
        state = states.state_of(self._operator)
        return {name: vars(self._operator)[name] for name in state or ()} if self._is_plain else state

    def _write(self, state: Any) -> None:
        if not self._is_plain:
            states.restore(self._operator, state)
            return
        for name in self._read().keys() - (state or {}).keys():
            delattr(self._operator, name)  # another run created it
        for name, value in (state or {}).items():
            setattr(self._operator, name, value)

    def _adopt_changes(self) -> None:
        """Add to the initial state the attributes that the program has set since the last run ended."""
        for name, value in self._read().items() if self._is_plain else ():
            if self._left.get(name, _UNKNOWN) is not value:
                self._initial[name] = copy.deepcopy(value)

    def leave(self) -> None:
        """Remember the attributes at the end of a run. Called with the lock."""
        self._left = dict(getattr(self._operator, "__dict__", {}))


class OperatorUse:
    """A run's use of an operator: within `with use`, the operator has the state of that run.

    Args:
        shared: the operator's state.
        group: the uses of all operators that the run calls from its own thread. They switch together, because
            operators may read one another.
    """

    def __init__(self, shared: OperatorState, group: list[OperatorUse]) -> None:
        self._shared = shared
        self._group = group
        self.saved: Any = _UNKNOWN
        """The state of this run while the operator has that of another; unknown before the first call."""
        self.closed = False

    def install(self) -> None:
        """Give the operator the state of this run."""
        with self._shared.lock:
            if self._shared.owner is not self:
                self._shared.switch_to(self)

    def __enter__(self) -> None:
        if self._shared.owner is not self:
            for use in self._group:
                use.install()
        self._shared.lock.acquire()
        if self._shared.owner is not self:
            try:
                self._shared.switch_to(self)
            except BaseException:
                self._shared.lock.release()
                raise

    def __exit__(self, *_: object) -> None:
        if self.closed and self._shared.owner is self:
            self._shared.leave()
        self._shared.lock.release()

    def close(self) -> None:
        """End the use. A call that still runs, on a thread, is not waited for."""
        self.closed, self.saved = True, None
        if self._shared.lock.acquire(blocking=False):
            try:
                if self._shared.owner is self:
                    self._shared.leave()
            finally:
                self._shared.lock.release()
