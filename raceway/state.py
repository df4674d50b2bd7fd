"""The state of an object as plain data, so that a run can be saved and resumed.

An object with `state()` and `restore(state)` defines its own state; `Stateful` gives it both from a list of attribute
names. For any other object, the state is every attribute that holds plain data: numbers, text, arrays, random
generators, and collections of them. Anything else (networks, actor handles, functions) is set by the constructor and
not saved.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np

from raceway.injection import injected_parameters

_DATA = (type(None), bool, int, float, str, bytes)

C = TypeVar("C", bound=type)


@dataclass(frozen=True)
class Record:
    """A class whose instances are saved as plain data: a named tuple, a dataclass, or a dict subclass."""

    cls: type
    wall_clock: frozenset[str] = frozenset()
    """Fields that hold times or worker names, which are not part of a state's hash."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New names of fields, by the names they have in older checkpoints."""


RECORDS: dict[str, Record] = {}
"""Records by module and qualified name."""
_FORMER_NAMES: dict[str, str] = {}
"""Keys of `RECORDS`, by the names that older checkpoints use."""


def record(
    *, wall_clock: tuple[str, ...] = (), renamed: Mapping[str, str] | None = None, formerly: tuple[str, ...] = ()
) -> Callable[[C], C]:
    """Register a class whose instances are plain data, saved with the object that holds them.

    Args:
        wall_clock: fields that hold times or worker names, which are not part of a state's hash.
        renamed: new names of fields, by the names they have in older checkpoints.
        formerly: names under which older checkpoints know the class.

    >>> from typing import NamedTuple
    >>> @record()
    ... class Point(NamedTuple):
    ...     x: float
    """

    def register(cls: C) -> C:
        name = record_name(cls)
        RECORDS[name] = Record(cls, frozenset(wall_clock), dict(renamed or {}))
        _FORMER_NAMES.update(dict.fromkeys(formerly, name))
        return cls

    return register


def record_name(cls: type) -> str:
    """Return the name that checkpoints use for a record class: its module and qualified name."""
    return f"{cls.__module__}.{cls.__qualname__}"


def find_record(name: str) -> Record:
    """Return a record by the name in a checkpoint, or by one that an older version used.

    Before the registry was keyed by module, checkpoints held the bare class name.
    """
    if name in RECORDS:
        return RECORDS[name]
    if name in _FORMER_NAMES:
        return RECORDS[_FORMER_NAMES[name]]
    matches = [entry for entry in RECORDS.values() if entry.cls.__name__ == name]
    if len(matches) != 1:
        raise KeyError(name)
    return matches[0]


class Stateful:
    """An object whose state is a fixed list of attributes."""

    state_attributes: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that change while it runs. Constants are not listed."""

    def state(self) -> Any:
        """Return the state to resume from. It may share values with the object: copy it to keep it."""
        return {name: getattr(self, name) for name in self.state_attributes}

    def restore(self, state: Any) -> None:
        """Resume from a state."""
        for name in self.state_attributes:
            setattr(self, name, state[name])


def has_state_methods(obj: object) -> bool:
    """Whether an object defines its own `state()` and `restore()`."""
    return hasattr(obj, "state") and hasattr(obj, "restore")


def state_of(obj: Any) -> Any:
    """Return the state of any object.

    >>> class Counter:
    ...     def __init__(self): self.count, self.file = 0, open
    >>> state_of(Counter())
    {'count': 0}
    """
    obj = _stateful_part(obj)
    if inspect.isroutine(obj) or isinstance(obj, type):
        return None
    if has_state_methods(obj):
        return obj.state()
    attributes = {name: _builtin_container(value) for name, value in attributes_of(obj).items()}
    if not (attributes or hasattr(obj, "__dict__")):
        return None
    return {name: value for name, value in attributes.items() if is_plain_data(value)}


def restore(obj: Any, state: Any) -> None:
    """Restore the state that `state_of` returned."""
    obj = _stateful_part(obj)
    if state is None:
        return
    if has_state_methods(obj):
        obj.restore(state)
    else:
        current = attributes_of(obj)
        values = {name: _like_current(value, current.get(name)) for name, value in state.items()}
        set_attributes(obj, current | values)


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the attributes that an object has itself, in its `__dict__` or in slots."""
    attributes = dict(getattr(obj, "__dict__", ()))
    for cls in type(obj).__mro__:
        for name, member in vars(cls).items() if "__slots__" in vars(cls) else ():
            if inspect.ismemberdescriptor(member) and hasattr(obj, name):
                attributes[name] = getattr(obj, name)
    return attributes


def set_attributes(obj: Any, attributes: Mapping[str, Any]) -> None:
    """Give an object the attributes that `attributes_of` returned, and no others.

    The object's own `__setattr__` is not called: it refuses if the object is a frozen dataclass.
    """
    current, in_dict = attributes_of(obj), getattr(obj, "__dict__", {})
    for name in current.keys() - attributes.keys():
        if name in in_dict:
            del in_dict[name]
        else:
            object.__delattr__(obj, name)
    for name, value in attributes.items():
        if name in in_dict:
            in_dict[name] = value
        elif name not in current or current[name] is not value:
            object.__setattr__(obj, name, value)


def state_of_actor(obj: Any, shard: Any) -> Any:
    """Return the state of an actor's object, or of one shard in it if its `state` asks for `shard`; else None."""
    return obj.state(**_injected_shard(obj.state, shard)) if has_state_methods(obj) else None


def restore_actor(obj: Any, state: Any, shard: Any) -> None:
    """Restore what `state_of_actor` returned."""
    if state is not None:
        obj.restore(state, **_injected_shard(obj.restore, shard))


def _injected_shard(method: Any, shard: Any) -> dict[str, Any]:
    return dict.fromkeys(injected_parameters(method, ("shard",), "in an actor's state() and restore()"), shard)


def _stateful_part(obj: Any) -> Any:
    """Return the object that holds the state of a callable: a method's `self`, or the function inside a partial."""
    while isinstance(obj, partial):
        obj = obj.func
    return obj.__self__ if inspect.ismethod(obj) else obj


def _is_record(value: Any) -> bool:
    entry = RECORDS.get(record_name(type(value)))
    return entry is not None and entry.cls is type(value)


def _builtin_container(value: Any) -> Any:
    """Return a dict or tuple subclass as a plain dict or tuple: the constructor sets the subclass."""
    if _is_record(value):
        return value
    return dict(value) if isinstance(value, dict) else tuple(value) if isinstance(value, tuple) else value


def _like_current(value: Any, current: Any) -> Any:
    """Return a restored value in the same dict or tuple subclass as the attribute's current value."""
    if isinstance(current, dict) and type(current) is not type(value):
        current.clear()
        current.update(value)
        return current
    return current._make(value) if hasattr(current, "_make") and type(value) is tuple else value


def is_plain_data(value: Any) -> bool:
    """Whether a value can be saved: numbers, text, arrays, random generators, and collections of them."""
    kind = type(value)
    if _is_record(value):
        return True
    if kind is dict:
        return all(map(is_plain_data, (*value, *value.values())))
    if kind in (list, tuple, set, deque):
        return all(map(is_plain_data, value))
    if kind is np.ndarray:
        return value.dtype.kind in "biufcmM"
    return kind in _DATA or isinstance(value, (np.generic, np.random.Generator))
