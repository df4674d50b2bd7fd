"""Parameters that the caller fills in: a function says what it needs, and is given that.

def look(item, *, actor=given, envelope=given): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from raceway.errors import ConfigError


class _Given:
    def __reduce__(self) -> str:
        return "given"  # the same one in every process


injected: Any = _Given()
"""The default of a parameter that is to be filled in."""


def injected_parameters(function: Callable[..., Any], offered: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the parameters that a function wants to be given, having checked that they are among those offered.

    >>> def look(item, *, envelope=given): ...
    >>> injected_parameters(look, ["envelope", "actor"], "here")
    ('envelope',)
    """
    if not callable(function):
        raise ConfigError(f"an operator is a function or another object that can be called, not {function!r}")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some built-in functions do not tell
        return ()
    asked = tuple(name for name, parameter in parameters.items() if parameter.default is injected)
    for name in asked:
        if name not in offered:
            what = getattr(function, "__name__", type(function).__name__)
            raise ConfigError(f"{what} asks for {name!r}, but {where} there is: {', '.join(offered)}")
    return asked
