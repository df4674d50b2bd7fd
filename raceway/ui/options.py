"""From a config dataclass to command-line options: names, types, defaults and help, all from the one place."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any


def add_options(parser: argparse.ArgumentParser, config: type[Any], shown: Sequence[str] | None = None) -> None:
    """Add an option for every field of a config. Only those that are `shown`, by default all, are in the help."""
    hints, helps = typing.get_type_hints(config), field_docs(config)
    for one in dataclasses.fields(config):
        default = one.default if one.default is not dataclasses.MISSING else None
        text = helps.get(one.name, "").replace("%", "%%")
        if default is not None:
            text = f"{text} [{default}]"
        if shown is not None and one.name not in shown:
            text = argparse.SUPPRESS
        option = "--" + one.name.replace("_", "-")
        if hints[one.name] is bool:
            parser.add_argument(option, action=argparse.BooleanOptionalAction, help=text)
        elif _is_mapping(hints[one.name]):
            parser.add_argument(option, nargs="+", action="extend", metavar="KEY=VALUE", type=pair, help=text)
        else:
            convert, name = _converter(hints[one.name])
            parser.add_argument(option, metavar=name, type=convert, help=text)


def settings_of(arguments: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """Return the settings that were given."""
    found = {one.name: getattr(arguments, one.name) for one in dataclasses.fields(config)}
    hints = typing.get_type_hints(config)
    return {
        name: dict(value) if _is_mapping(hints[name]) else value for name, value in found.items() if value is not None
    }


def field_docs(config: type[Any]) -> dict[str, str]:
    """Return the text under each field, of the classes it inherits from too."""
    found: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError):  # made without a file
            continue
        body = tree.body[0].body  # type: ignore[attr-defined]
        for field, after in pairwise(body):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
                found[field.target.id] = " ".join(text.split())
    return found


def pair(text: str) -> tuple[str, Any]:
    """Read key=value, where the value is a Python literal or else text.

    >>> pair("gravity=-9.8"), pair("mode=easy")
    (('gravity', -9.8), ('mode', 'easy'))
    """
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def _is_mapping(hint: Any) -> bool:
    return typing.get_origin(hint) is dict


def _converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    """Return how to read an option of a type, and what its value is called in the help."""
    kinds = [part for part in _parts(hint) if part is not type(None)]
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return widths, "N,N"
    if int in kinds and str in kinds:
        return number_or_word, "N|auto"
    if int in kinds:
        return whole_number, "N"
    if float in kinds:
        return real_number, "X"
    return str, "TEXT"


def _parts(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def whole_number(text: str) -> int:
    """Read a whole number, also one written as 1e6 or 1_000_000.

    >>> whole_number("1e6"), whole_number("12")
    (1000000, 12)
    """
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = 0.5
    if not value.is_integer():  # nor is infinity
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def real_number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def number_or_word(text: str) -> int | str:
    """Read a number, or `auto`."""
    if text == "auto":
        return text
    try:
        return whole_number(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto") from None


def widths(text: str) -> tuple[int, ...]:
    """Read numbers with commas between them.

    >>> widths("64,64")
    (64, 64)
    """
    return tuple(whole_number(part) for part in text.split(",") if part)
