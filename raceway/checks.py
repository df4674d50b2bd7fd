"""Validators of arguments, options and names. Each raises a `ConfigError` that says what is wrong and what to do."""

from __future__ import annotations

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
    near = nearest_name(str(value), names)
    guess = f" Did you mean {near!r}?" if near is not None else ""
    known = f" Choose from: {', '.join(names)}." if names else ""
    return ConfigError(f"unknown {what} {value!r}.{guess}{known}{' ' + hint if hint else ''}")


def nearest_name(value: str, names: Iterable[str]) -> str | None:
    """Return the name that was probably meant, or None if no name is near.

    A name is near if at most a third of its characters differ, or if the value is its beginning, a long part of it, or
    has the beginnings of its words, or if it is the initials of the value, as `lr` is of `learning_rate`. Case does not
    count, nor do hyphens and underscores.

    >>> nearest_name("pp0", ["a3c", "ppo"]), nearest_name("half-chee", ["halfcheetah"]), nearest_name("sac", ["a3c"])
    ('ppo', 'halfcheetah', None)
    """
    typed, initials = _letters(value), _initials(value)
    best: tuple[int, int, str] | None = None
    for name in names:
        letters = _letters(name)
        allowed = max(len(typed), len(letters)) // 3
        part = (len(typed) >= 3 and letters.startswith(typed)) or (len(typed) >= 4 and typed in letters)
        part = part or _abbreviates(value, name) or letters == initials
        if not part and abs(len(typed) - len(letters)) > allowed:
            continue
        distance = _edit_distance(typed, letters)
        if (part or distance <= allowed) and (best is None or distance <= best[0]):
            candidate = distance, _edit_distance(value, name), name  # of equally near names, the one in the same case
            best = candidate if best is None else min(best, candidate)
    return None if best is None else best[2]


def _abbreviates(value: str, name: str) -> bool:
    """Whether several words are the beginnings of the words of a name."""
    parts, words = (text.lower().replace("_", "-").strip("-").split("-") for text in (value, name))
    return len(parts) == len(words) > 1 and all(
        part and word.startswith(part) for part, word in zip(parts, words, strict=True)
    )


def _initials(value: str) -> str | None:
    """Return the first letters of the words of a value; None if it has only one word."""
    words = value.lower().replace("_", "-").strip("-").split("-")
    return "".join(word[:1] for word in words) if len(words) > 1 else None


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def _edit_distance(first: str, second: str) -> int:
    """Return the least number of insertions, deletions, substitutions and swaps of neighbours between two texts."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for i, char in enumerate(first):
        previous, before, row = before, row, [i + 1]
        for j, other in enumerate(second):
            distance = min(before[j] + (char != other), before[j + 1] + 1, row[j] + 1)
            if i and j and char == second[j - 1] and first[i - 1] == other:
                distance = min(distance, previous[j - 1] + 1)
            row.append(distance)
    return row[-1]


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


def check_fraction(what: str, value: object) -> float:
    """Check that a value is a number from 0 to 1 and return it.

    >>> check_fraction("discount factor", 0.99)
    0.99
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ConfigError(f"{what} must be a number from 0 to 1, not {value!r}")
    return value


def check_positive(what: str, value: object) -> float:
    """Check that a value is a finite number above 0 and return it.

    >>> check_positive("deadline", 2.5)
    2.5
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < float("inf"):
        raise ConfigError(f"{what} must be a number above 0, not {value!r}")
    return value
