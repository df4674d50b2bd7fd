"""What can be stopped and go on later: the state of an object as a value, and back.

An object that has `state()` and `restore(state)` decides for itself. Of any other the attributes that are plain data
are its state: numbers, text, arrays, random generators, and collections of them. What else it holds (networks, handles
of actors, functions) is taken to be how it was made.
"""

from __future__ import annotations

import inspect
from collections import deque
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from raceway.given import asked_for

_DATA = (type(None), bool, int, float, str, bytes)

RECORDS: dict[str, type] = {}
"""Classes whose objects are plain data, by name: named tuples, dataclasses, and dicts of a kind."""

C = TypeVar("C", bound=type)


def record(cls: C) -> C:
    """Take the objects of a class for plain data, which is kept with whatever holds it."""
    RECORDS[cls.__name__] = cls
    return cls


class Stateful:
    """Something whose state is certain attributes."""

    kept: ClassVar[tuple[str, ...]] = ()
    """The attributes that change while it runs."""

    def state(self) -> Any:
        """Return what is needed to go on from here. It may share values with the object: copy it to keep it."""
        return {name: getattr(self, name) for name in self.kept}

    def restore(self, state: Any) -> None:
        """Go on from there."""
        for name in self.kept:
            setattr(self, name, state[name])


def decides(thing: object) -> bool:
    """Whether an object has a `state()` and a `restore()` of its own."""
    return hasattr(thing, "state") and hasattr(thing, "restore")


def state_of(thing: Any) -> Any:
    """Return the state of any object.

    >>> class Counter:
    ...     def __init__(self): self.count, self.file = 0, open
    >>> state_of(Counter())
    {'count': 0}
    """
    thing = _holder(thing)
    if inspect.isroutine(thing) or isinstance(thing, type):
        return None
    if decides(thing):
        return thing.state()
    if not hasattr(thing, "__dict__"):
        return None
    plain = {name: _plain(value) for name, value in vars(thing).items()}
    return {name: value for name, value in plain.items() if _is_data(value)}


def restore(thing: Any, state: Any) -> None:
    """Give an object back the state that `state_of` returned."""
    thing = _holder(thing)
    if state is None:
        return
    if decides(thing):
        thing.restore(state)
    else:
        for name, value in state.items():
            setattr(thing, name, _of_its_kind(value, vars(thing).get(name)))


def state_of_actor(thing: Any, shard: Any) -> Any:
    """Return what an actor's object says of itself, or of the shard if it asks for that; None if it says nothing."""
    return thing.state(**_asked(thing.state, shard)) if decides(thing) else None


def restore_actor(thing: Any, state: Any, shard: Any) -> None:
    """Give an actor's object back what `state_of_actor` returned."""
    if state is not None:
        thing.restore(state, **_asked(thing.restore, shard))


def _asked(method: Any, shard: Any) -> dict[str, Any]:
    return dict.fromkeys(asked_for(method, ("shard",), "of an actor's state"), shard)


def _holder(thing: Any) -> Any:
    """Return what holds the state of a callable: the object of a method, or what a partial calls."""
    while isinstance(thing, partial):
        thing = thing.func
    return thing.__self__ if inspect.ismethod(thing) else thing


def _is_record(value: Any) -> bool:
    return RECORDS.get(type(value).__name__) is type(value)


def _plain(value: Any) -> Any:
    """Return a dict or tuple of a kind, such as a defaultdict, as just that: its kind is how it was made."""
    if _is_record(value):
        return value
    return dict(value) if isinstance(value, dict) else tuple(value) if isinstance(value, tuple) else value


def _of_its_kind(value: Any, there: Any) -> Any:
    """Return a value as what is in its place was made."""
    if isinstance(there, dict) and type(there) is not type(value):
        there.clear()
        there.update(value)
        return there
    return there._make(value) if hasattr(there, "_make") and type(value) is tuple else value


def _is_data(value: Any) -> bool:
    kind = type(value)
    if _is_record(value):
        return True
    if kind is dict:
        return all(map(_is_data, (*value, *value.values())))
    if kind in (list, tuple, set, deque):
        return all(map(_is_data, value))
    if kind is np.ndarray:
        return value.dtype.kind in "biufcmM"
    return kind in _DATA or isinstance(value, (np.generic, np.random.Generator))
