"""Parameters that the caller fills in: a function declares the ones it needs by their default value, `injected`.

def inspect(item, *, actor=injected, envelope=injected): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from raceway.errors import ConfigError


class _Injected:
    def __reduce__(self) -> str:
        return "injected"  # the same object in every process


injected: Any = _Injected()
"""The default value that marks a parameter to be filled in."""


def injected_parameters(function: Callable[..., Any], offered: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the names of the parameters that a function wants to be injected.

    Args:
        function: the function.
        offered: the names that are available.
        where: where the function is used, for the error.

    Raises:
        ConfigError: it asks for a parameter that is not offered.

    >>> def inspect(item, *, envelope=injected): ...
    >>> injected_parameters(inspect, ["envelope", "actor"], "here")
    ('envelope',)
    """
    if not callable(function):
        raise ConfigError(f"an operator must be a function or another callable, not {function!r}")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return ()
    requested = tuple(name for name, parameter in parameters.items() if parameter.default is injected)
    for name in requested:
        if name not in offered:
            label = getattr(function, "__name__", type(function).__name__)
            raise ConfigError(f"{label} asks for {name!r}, but {where} only these are available: {', '.join(offered)}")
    return requested
