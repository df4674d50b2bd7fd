"""The state of operators in the driver: every run of a flow has its own, although there is one object.

An operator on a shard or an actor is a copy, so its state belongs to the run. In the driver it is the program's own
object, which the program may read, and which may share a learner with other operators, so it cannot be copied. Instead,
a run starts it from the state it had when the flow was first started, and two runs that take turns swap their states.

What an operator's state is, `raceway.state` defines. An object that it only refers to, such as a network, is shared by
the runs.
"""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

from raceway import state as states
from raceway.errors import FlowError
from raceway.flow._snapshots import Snapshot

_UNKNOWN = object()


def operator_object(function: Callable[..., Any]) -> Any:
    """Return the object whose state belongs to a run; None for functions and methods, which change other objects.

    >>> operator_object(len) is operator_object([].append) is None
    True
    """
    function = _innermost(function)
    return None if inspect.isroutine(function) or isinstance(function, type) else function


def _innermost(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return function


class OperatorState:
    """An operator in a plan: the object, and the state in which the runs of the plan start it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        method_of = getattr(_innermost(function), "__self__", None)
        operator = operator_object(function)
        self.shared: OperatorObject | None = None  # for functions, whose calls need not exclude each other
        if operator is not None:
            self.shared = OperatorObject.of(operator)
        elif method_of is not None and not inspect.ismodule(method_of):
            self.shared = OperatorObject(None)
        self.snapshot: Snapshot | None = None
        self._left_running: list[FunctionUse] = []

    def __reduce__(self) -> Any:
        return type(self), (self._function,)

    @property
    def key(self) -> object:
        """What the places of a plan with the same operator have in common."""
        return self if self.shared is None else self.shared

    def use(self, group: list[OperatorUse]) -> OperatorUse | FunctionUse:
        """Return a run's use of the operator."""
        return FunctionUse(self._left_running) if self.shared is None else OperatorUse(self, self.shared, group)


class OperatorObject:
    """An operator object, and which run's state it has now. Calls of the operator exclude each other."""

    _all: ClassVar[weakref.WeakValueDictionary[int, OperatorObject]] = weakref.WeakValueDictionary()  # by id
    _all_lock: ClassVar = threading.RLock()

    def __init__(self, operator: Any) -> None:
        self._object = operator
        self._operator = None if getattr(operator, "shared_by_runs", False) else operator
        self._is_plain = not states.has_state_methods(operator)
        self._snapshots: weakref.WeakSet[Snapshot] = weakref.WeakSet()
        self._left: dict[str, Any] = {}  # the attributes as the last run left them
        self._live: set[OperatorUse] = set()
        self.owner: OperatorUse | None = None
        self.lock = threading.RLock()

    @classmethod
    def of(cls, operator: Any) -> OperatorObject:
        """Return the one of an operator, whatever flows the operator is in."""
        with cls._all_lock:
            return cls._all.setdefault(id(operator), cls(operator))

    def switch_to(self, use: OperatorUse) -> None:
        """Give the operator the state of a run. Called with the lock."""
        if use.closed:
            raise FlowError("the run is closed")
        if self._operator is not None:
            self._swap(use, self.owner)
            self._live.add(use)
        self.owner = use

    def _swap(self, use: OperatorUse, previous: OperatorUse | None) -> None:
        is_live = previous is not None and not previous.closed
        if not is_live:
            self._adopt_changes()
        is_first = use.state.snapshot is None
        if use.state.snapshot is None:
            use.state.snapshot = Snapshot(self._operator)
            self._snapshots.add(use.state.snapshot)
        state = use.saved
        if state is _UNKNOWN and (is_live or not is_first):
            state = use.state.snapshot.copy(apart=bool(self._live))
        if is_live:
            assert previous is not None
            previous.saved = self._current_state()
        if state is not _UNKNOWN:
            self._write(state)
        use.saved = None

    def _current_state(self) -> Any:
        """Return the state for a run that continues later: all attributes, or a copy of the result of `state()`."""
        if self._is_plain:
            return states.attributes_of(self._operator)
        return copy.deepcopy(states.state_of(self._operator))

    def _write(self, state: Any) -> None:
        if self._is_plain:
            states.set_attributes(self._operator, state)
        else:
            states.restore(self._operator, state)

    def _adopt_changes(self) -> None:
        """Add to the states that runs start from the attributes that the program has set since the last run ended."""
        if self._is_plain and self._snapshots:
            now = states.attributes_of(self._operator)
            changed = {name for name, value in now.items() if self._left.get(name, _UNKNOWN) is not value}
            for snapshot in self._snapshots if changed or self._left.keys() - now.keys() else ():
                snapshot.adopt(changed, self._left.keys() - now.keys())

    def leave(self, use: OperatorUse) -> None:
        """Remember the attributes at the end of a run. Called with the lock."""
        self._live.discard(use)
        if self._operator is not None and self._is_plain and self.owner is use:
            self._left = states.attributes_of(self._operator)


class OperatorUse:
    """A run's use of an operator: within `with use`, the operator has the state of that run.

    Args:
        state: the operator in the plan.
        shared: the operator.
        group: the uses of all operators that the run calls from its own thread. They switch together, because
            operators may read one another.
    """

    def __init__(self, state: OperatorState, shared: OperatorObject, group: list[OperatorUse]) -> None:
        self.state = state
        self._shared, self._lock = shared, shared.lock
        self._group = group
        self.saved: Any = _UNKNOWN
        """The state of this run while the operator has that of another; unknown before the first call."""
        self.closed = False
        self._interrupted: OperatorUse | None = None  # another run, in whose call of the operator this one calls it
        self._has_exit_work = False

    def install(self) -> None:
        """Give the operator the state of this run, unless it is in the middle of a call.

        A thread that waited for such a call could itself hold an operator that the call waits for.
        """
        if self._shared.owner is self or _is_held(self._lock) or not self._lock.acquire(blocking=False):
            return
        try:
            if self._shared.owner is not self:
                self._shared.switch_to(self)
        finally:
            self._lock.release()

    def __enter__(self) -> None:
        if self._shared.owner is self:
            self._lock.acquire()
            if self._shared.owner is self:
                return
            self._lock.release()  # another thread has switched it meanwhile
        self._switch_and_enter()

    def _switch_and_enter(self) -> None:
        for use in self._group:
            use.install()
        interrupted = self._shared.owner if _is_held(self._lock) else None
        self._lock.acquire()
        try:
            if self._shared.owner is not self:
                self._shared.switch_to(self)
        except BaseException:
            self._lock.release()
            raise
        if interrupted is not None:
            self._interrupted, self._has_exit_work = interrupted, True

    def __exit__(self, *_: object) -> None:
        if self._has_exit_work:
            self._leave()
        else:
            self._lock.release()

    def _leave(self) -> None:
        """Release the operator after closing, or to the run whose call was interrupted."""
        interrupted, self._interrupted, self._has_exit_work = self._interrupted, None, self.closed
        try:
            if self.closed:
                self._shared.leave(self)
            if interrupted is not None and not interrupted.closed and self._shared.owner is self:
                self._shared.switch_to(interrupted)
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the use. A call that still runs, on a thread, is not waited for."""
        self.closed, self.saved, self._has_exit_work = True, None, True
        if self._lock.acquire(blocking=False):
            try:
                self._shared.leave(self)
            finally:
                self._lock.release()


class FunctionUse:
    """A run's use of a function on a thread: its calls wait for those that closed runs have left running."""

    def __init__(self, left_running: list[FunctionUse]) -> None:
        self._left_running = left_running
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> None:
        while self._left_running:
            use = self._left_running[-1]
            with use._lock, suppress(ValueError):
                self._left_running.remove(use)
        self._lock.acquire()
        if self._closed:  # before the thread got here
            self._lock.release()
            raise FlowError("the run is closed")

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def close(self) -> None:
        """End the use. A call that still runs is not waited for."""
        self._closed = True
        if self._lock.locked():
            self._left_running.append(self)


def _is_held(lock: Any) -> bool:
    """Whether this thread holds a reentrant lock."""
    return lock._is_owned()  # type: ignore[no-any-return]
