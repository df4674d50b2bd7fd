"""Validators of arguments, options and names. Each raises a `ConfigError` that says what is wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from raceway.errors import ConfigError


def unknown_name(what: str, value: object, choices: Iterable[str], hint: str = "") -> ConfigError:
    """Return the error for a name that is not among `choices`.

    Args:
        what: the kind of thing it names, such as `engine`.
        value: the name.
        choices: the valid names.
        hint: a sentence to add.

    >>> print(unknown_name("engine", "proces", ["inline", "process", "ray"]))
    unknown engine 'proces'. Did you mean 'process'? Choose from: inline, process, ray.
    """
    names = sorted(choices)
    close = difflib.get_close_matches(str(value), names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return ConfigError(f"unknown {what} {value!r}.{guess} Choose from: {', '.join(names)}.{' ' + hint if hint else ''}")


def check_choice(what: str, value: str, choices: Collection[str]) -> str:
    """Check that a name is one of `choices` and return it.

    >>> check_choice("engine", "ray", ["inline", "process", "ray"])
    'ray'
    """
    if value not in choices:
        raise unknown_name(what, value, choices)
    return value


def check_int(what: str, value: object, minimum: int = 1) -> int:
    """Check that a value is an integer of at least `minimum` and return it.

    >>> check_int("batch size", 4)
    4
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise ConfigError(f"{what} must be a whole number from {minimum}, not {value!r}")
    return value


def check_positive(what: str, value: object) -> float:
    """Check that a value is a finite number above 0 and return it.

    >>> check_positive("deadline", 2.5)
    2.5
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ConfigError(f"{what} must be a number above 0, not {value!r}")
    return value
