"""Command-line options from a config dataclass: names, types, defaults, groups and help, all from the dataclass."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

from raceway.algorithms import Algorithm
from raceway.algorithms.preset_files import describe_presets
from raceway.algorithms.setting_sources import DEFAULT, SOURCE_LABELS, Sources, format_setting
from raceway.commands.config_file_options import read_config_option
from raceway.settings.field_types import FieldType, allows_none, choices, plain_types, setting_types

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
    hints, helps, group_of = setting_types(config), field_docs(config), field_groups(config)
    for field in dataclasses.fields(config):
        text = helps.get(field.name, "").replace("%", "%%")
        if shown is not None and field.name not in shown:
            text = argparse.SUPPRESS
        # An option that is not used leaves no value: None is one, the user's "none".
        shared: dict[str, Any] = {"help": text, "default": argparse.SUPPRESS}
        group, option = groups[group_of[field.name]], "--" + field.name.replace("_", "-")
        if bool in plain_types(hints[field.name]):
            group.add_argument(option, action=argparse.BooleanOptionalAction, **shared)
        elif _is_mapping(hints[field.name]):
            group.add_argument(option, nargs="+", action="extend", metavar="KEY=VALUE", type=parse_key_value, **shared)
        else:
            convert, metavar = _converter(hints[field.name])
            group.add_argument(option, metavar=metavar, type=convert, **shared)
    return groups


NOTE = (
    "In brackets: the value that would be used, and where it comes from if it is not the default. `none` unsets a "
    "setting that need not have a value."
)
"""What the help says about effective settings."""


@dataclass(frozen=True)
class EffectiveSettings:
    """The settings that a command would run with."""

    values: Mapping[str, Any]
    sources: Sources
    """Where each of them comes from."""
    note: str
    """A paragraph of the help about them."""


def effective_settings(
    algorithm: Algorithm, settings: Mapping[str, Any], options: argparse.Namespace
) -> EffectiveSettings:
    """Return what the command line results in; the presets are listed if no environment is named."""
    from raceway.runs.settings_file import merge_settings

    values, from_file = merge_settings(algorithm, read_config_option(options), settings)
    defaults, preset, note = default_settings(algorithm.config), algorithm.preset(values), NOTE
    if "env" in values:
        source = algorithm.preset_source(values)
        note += f" Source of the preset: {source}" if source else f" There is no preset for {values['env']}."
    elif algorithm.presets:
        note += f" There are presets for {describe_presets(algorithm.presets)}: add --env to see the values."
    return EffectiveSettings({**defaults, **preset, **values}, algorithm.sources(values, from_file), note)


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
    if source == DEFAULT:
        return "" if value is None or value in ({}, ()) else f"[{format_setting(value)}]"
    was = "" if default is None or default in ({}, ()) else f"; default {format_setting(default)}"
    return f"[{format_setting(value)}, {SOURCE_LABELS[source]}{was}]"


def parsed_settings(arguments: argparse.Namespace, config: type[Any]) -> dict[str, Any]:
    """Return the settings of a config that were set on the command line."""
    values = {name: getattr(arguments, name) for name in setting_types(config) if hasattr(arguments, name)}
    return {name: dict(value) if _is_mapping(setting_types(config)[name]) else value for name, value in values.items()}


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


def _is_mapping(hint: FieldType) -> bool:
    return any(typing.get_origin(kind) is dict for kind in plain_types(hint))


def _converter(hint: FieldType) -> tuple[Callable[[str], Any], str]:
    """Return the parser of an option's value, and the name of the value in the help."""
    kinds = plain_types(hint)
    named = {str(choice): choice for choice in choices(hint)}
    metavars = list(named)
    parse: Callable[[str], Any] = str  # the config checks names, and suggests the one that was meant
    lists = [typing.get_args(kind) for kind in kinds if typing.get_origin(kind) is tuple]
    if lists and str in lists[0]:
        parse, metavars = parse_names, ["A,B", *metavars]
    elif lists:
        parse, metavars = parse_widths, ["N,N", *metavars]
    elif int in kinds:
        parse, metavars = parse_int, ["N", *metavars]
    elif float in kinds:
        parse, metavars = parse_float, ["X", *metavars]
    elif len(kinds) != 1 or not metavars:
        metavars = ["TEXT"]
    if allows_none(hint):
        named = {"none": None, **named}
    return partial(_parse_value, named=named, parse=parse), "|".join(metavars)


def _parse_value(text: str, named: Mapping[str, Any], parse: Callable[[str], Any]) -> Any:
    """Parse one of the named values, or another one."""
    if text in named:
        return named[text]
    try:
        return parse(text)
    except argparse.ArgumentTypeError:
        others = [name for name, value in named.items() if value is not None]
        if not others:
            raise
        nouns: dict[Any, str] = {parse_int: "a whole number", parse_float: "a number", parse_widths: "widths"}
        raise argparse.ArgumentTypeError(f"{text!r} is neither {nouns[parse]} nor {' nor '.join(others)}") from None


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

    >>> parse_int("1e6"), parse_int("12"), parse_int("9007199254740993")
    (1000000, 12, 9007199254740993)
    """
    with contextlib.suppress(ValueError):
        return int(text)  # a float would round a large one
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


def parse_widths(text: str) -> tuple[int, ...]:
    """Parse whole numbers, separated by commas.

    >>> parse_widths("64,64")
    (64, 64)
    """
    return tuple(parse_int(part) for part in text.split(",") if part)


def parse_names(text: str) -> tuple[str, ...]:
    """Parse names, separated by commas.

    >>> parse_names("distance, speed")
    ('distance', 'speed')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())
