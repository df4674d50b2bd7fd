"""The state in which the runs of a flow start an operator."""

from __future__ import annotations

import copy
import zlib
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from raceway import state as states
from raceway.errors import FlowError

_LARGE = 4 << 20  # bytes


class Snapshot:
    """The state of an operator when a flow was first started.

    Most flows run once, so taking it is cheap and cannot fail. Of a large array it has a checksum instead of a copy:
    0.25 ms per MB, without memory. A second run gets the array if it is unchanged, which it is if operators only read
    it.
    """

    def __init__(self, operator: Any) -> None:
        self._operator = operator
        self._is_plain = not states.has_state_methods(operator)
        self._references: dict[str, Any] = {}  # attributes that are not plain data
        self._state: Any = {}  # the others, or the result of `state()`
        self._checksums: dict[int, int] = {}  # of the large arrays in it, by id
        self._error: Exception | None = None
        try:
            if self._is_plain:
                self.adopt(states.attributes_of(operator).keys(), ())
            else:
                self._state = self._copy_in(states.state_of(operator))
        except Exception as error:
            self._error = error

    def adopt(self, names: Collection[str], deleted: Collection[str]) -> None:
        """Replace some attributes of a plain object by those that it has now."""
        for name in {*names, *deleted}:
            self._references.pop(name, None)
            self._state.pop(name, None)
        values, plain = states.attributes_of(self._operator), states.state_of(self._operator) or {}
        self._references |= {name: values[name] for name in names if name not in plain}
        self._state |= self._copy_in({name: values[name] for name in names if name in plain})

    def _copy_in(self, state: Any) -> Any:
        large = {id(array): array for array in _large_arrays(state)}
        self._checksums |= {key: _checksum(array) for key, array in large.items()}
        return copy.deepcopy(state, large)  # what is in this dict of finished copies is not copied

    def copy(self, apart: bool) -> Any:
        """Return the state for another run: all attributes of a plain object, or what `state()` returned.

        Args:
            apart: copy large arrays too, because a run that has not ended uses them.
        """
        name = type(self._operator).__name__
        advice = (
            f"Set `shared_by_runs = True` in the class {name} if all runs may continue with the same state, or create "
            "the operator and the flow again for every run."
        )
        if self._error is not None:
            reason = f"{type(self._error).__name__}: {self._error}"
            raise FlowError(
                f"the state of {name} could not be copied when the flow was first started ({reason}), so the flow "
                f"cannot be run again. {advice}"
            ) from self._error
        large = {id(array): array for array in _large_arrays(self._state)}
        if any(_checksum(array) != self._checksums[key] for key, array in large.items()):
            size = sum(array.nbytes for array in large.values()) >> 20
            raise FlowError(
                f"the flow cannot be run again: {name} has changed its arrays in place, and they are too large to be "
                f"copied whenever a flow is started ({size} MB). {advice}"
            )
        state = copy.deepcopy(self._state, {} if apart else large)
        return {**self._references, **state} if self._is_plain else state


def _large_arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the large arrays in collections."""
    if type(value) is np.ndarray:
        if value.nbytes >= _LARGE and value.flags.forc and not value.dtype.hasobject:
            yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from _large_arrays(part)
    elif isinstance(value, (list, tuple, deque)):
        for part in value:
            yield from _large_arrays(part)


def _checksum(array: np.ndarray[Any, Any]) -> int:
    return zlib.crc32(array.ravel(order="K").view(np.uint8).data)
