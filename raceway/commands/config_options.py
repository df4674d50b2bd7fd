"""Command-line options from a config dataclass: names, types, defaults, groups and help, all from the dataclass."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from raceway.algorithms import Algorithm
from raceway.algorithms.setting_sources import (
    ADAPTED,
    DEFAULT,
    PRESET,
    USER,
    VARIABLE,
    Sources,
    format_setting,
)

GROUPS = ("run", "environment", "workers", "optimiser", "algorithm", "output")
"""Groups of options, in the order of the help."""
OptionGroup = argparse._ArgumentGroup


def add_options(
    parser: argparse.ArgumentParser, config: type[Any], shown: Sequence[str] | None = None
) -> dict[str, OptionGroup]:
    """Add an option for every field of a config, and return the groups of options by name.

    Args:
        parser: parser to add them to.
        config: a dataclass.
        shown: fields whose options are in the help; all by default.
    """
    groups = {group: parser.add_argument_group(group) for group in GROUPS}
    hints, helps, group_of = typing.get_type_hints(config), field_docs(config), field_groups(config)
    for field in dataclasses.fields(config):
        text = helps.get(field.name, "").replace("%", "%%")
        if shown is not None and field.name not in shown:
            text = argparse.SUPPRESS
        group, option = groups[group_of[field.name]], "--" + field.name.replace("_", "-")
        if hints[field.name] is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, help=text)
        elif _is_mapping(hints[field.name]):
            group.add_argument(option, nargs="+", action="extend", metavar="KEY=VALUE", type=parse_key_value, help=text)
        else:
            convert, metavar = _converter(hints[field.name])
            group.add_argument(option, metavar=metavar, type=convert, help=text)
    return groups


NOTE = "In brackets: the value that would be used, and where it comes from if it is not the default."
"""What the help says about effective settings."""


@dataclass(frozen=True)
class EffectiveSettings:
    """The settings that a command would run with."""

    values: Mapping[str, Any]
    sources: Sources
    """Where each of them comes from."""
    note: str
    """A paragraph of the help about them."""


def effective_settings(algorithm: Algorithm, settings: Mapping[str, Any]) -> EffectiveSettings:
    """Return what the settings of the command line result in; the presets are listed if no environment is named."""
    defaults, preset, note = default_settings(algorithm.config), algorithm.preset(settings), NOTE
    if "env" in settings:
        note += "" if preset else f" There is no preset for {settings['env']}."
    elif algorithm.presets:
        note += f" There are presets for {', '.join(algorithm.presets)}: add --env to see the values."
    return EffectiveSettings({**defaults, **preset, **settings}, algorithm.sources(settings), note)


def default_settings(config: type[Any]) -> dict[str, Any]:
    """Return the defaults of a config's fields."""
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(config)
    }


def show_effective(parser: argparse.ArgumentParser, config: type[Any], effective: EffectiveSettings) -> None:
    """Add the effective settings to the help of a parser."""
    parser.description = f"{parser.description}\n\n{effective.note}"
    defaults = default_settings(config)
    for action in parser._actions:
        if action.dest in effective.values and action.help not in (None, argparse.SUPPRESS):
            source = effective.sources.get(action.dest, DEFAULT)
            text = describe_value(effective.values[action.dest], source, defaults.get(action.dest))
            action.help = f"{action.help} {text.replace('%', '%%')}".rstrip()


def describe_value(value: Any, source: str, default: Any) -> str:
    """Return a setting's value in brackets, with its source and its default if it comes from elsewhere.

    >>> describe_value(64, "preset", 8), describe_value(8, "default", 8), describe_value(None, "default", None)
    ('[64, preset; default 8]', '[8]', '')
    """
    label = {USER: "you", PRESET: "preset", VARIABLE: "environment variable", ADAPTED: "adapted"}.get(source)
    if label is None:
        return "" if value is None or value == {} else f"[{format_setting(value)}]"
    was = "" if default is None or default == {} else f"; default {format_setting(default)}"
    return f"[{format_setting(value)}, {label}{was}]"


def parsed_settings(arguments: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """Return the settings of a config that were set on the command line."""
    values = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(config)}
    hints = typing.get_type_hints(config)
    return {
        name: dict(value) if _is_mapping(hints[name]) else value for name, value in values.items() if value is not None
    }


def field_docs(config: type[Any]) -> dict[str, str]:
    """Return the text under each field of a config, inherited fields included."""
    docs: dict[str, str] = {}
    for cls in reversed(config.__mro__[:-1]):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
        except (OSError, TypeError):  # defined without a source file
            continue
        body = tree.body[0].body  # type: ignore[attr-defined]
        for field, after in pairwise(body):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
                docs[field.target.id] = " ".join(text.split())
    return docs


def field_groups(config: type[Any]) -> dict[str, str]:
    """Return the group of each field: that of the base class that introduces it, or else `algorithm`."""
    groups: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        for name in inspect.get_annotations(cls):
            groups.setdefault(name, vars(cls).get("group", "algorithm"))
    return groups


def _is_mapping(hint: Any) -> bool:
    return typing.get_origin(hint) is dict


def _converter(hint: Any) -> tuple[Callable[[str], Any], str]:
    """Return the parser of an option's value, and the name of the value in the help."""
    kinds = [part for part in _alternatives(hint) if part is not type(None)]
    if any(typing.get_origin(kind) is tuple for kind in kinds):
        return parse_widths, "N,N"
    if int in kinds and str in kinds:
        return parse_int_or_auto, "N|auto"
    if int in kinds:
        return parse_int, "N"
    if float in kinds:
        return parse_float, "X"
    return str, "TEXT"


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


def parse_key_value(text: str) -> tuple[str, Any]:
    """Parse key=value, where the value is a Python literal or else text.

    >>> parse_key_value("gravity=-9.8"), parse_key_value("mode=easy")
    (('gravity', -9.8), ('mode', 'easy'))
    """
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def parse_int(text: str) -> int:
    """Parse a whole number, also in the form 1e6 or 1_000_000.

    >>> parse_int("1e6"), parse_int("12")
    (1000000, 12)
    """
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        value = 0.5
    if not value.is_integer():  # nor is infinity
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(value)


def parse_positive_int(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = parse_int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def parse_float(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def parse_int_or_auto(text: str) -> int | str:
    """Parse a whole number, or `auto`."""
    if text == "auto":
        return text
    try:
        return parse_int(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor auto") from None


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse whole numbers, separated by commas.

    >>> parse_widths("64,64")
    (64, 64)
    """
    return tuple(parse_int(part) for part in text.split(",") if part)
