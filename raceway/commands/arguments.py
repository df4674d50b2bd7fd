"""Arguments that commands share: the algorithm or run as the first argument, and the settings of an algorithm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from raceway.checks import unknown_name

if TYPE_CHECKING:
    from raceway.commands.config_options import OptionGroup


def wide_help(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter with room for long options."""
    return argparse.HelpFormatter(prog, max_help_position=32, width=110)


def split_first(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the first argument, if it is positional (else None), and the rest."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def split_algorithm(command: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the first argument, the algorithm's name, and the rest; without one, exit with the command's usage."""
    name, rest = split_first(arguments)
    if name is None:
        sys.exit(print_usage(f"{command} <algorithm> [options]. `raceway list` has the algorithms", rest))
    return name, rest


def print_usage(text: str, rest: list[str]) -> int:
    """Print the usage of a command, and return its exit code: 0 if help was asked for."""
    print(f"usage: raceway {text}.", file=sys.stderr)
    return 0 if {"-h", "--help"} & set(rest) else 2


def settings_parser(
    command: str, subject: str, config: type[Any], description: str, shown: Sequence[str] | None = None
) -> tuple[argparse.ArgumentParser, dict[str, OptionGroup]]:
    """Return a parser of the settings of an algorithm, and its groups of options by name.

    Args:
        command: name of the command.
        subject: what stands in first place: an algorithm, or RUN.
        config: the algorithm's config.
        description: first paragraph of the help.
        shown: settings that are in the help; all by default.
    """
    from raceway.commands.config_options import add_options

    prog = f"raceway {command} {subject}"
    parser = argparse.ArgumentParser(
        prog=prog, usage=f"{prog} [options]", description=description, allow_abbrev=False, formatter_class=wide_help
    )
    groups = add_options(parser, config, shown)
    groups["workers"].add_argument("--local", action="store_true", help="Run in one process: --engine inline.")
    return parser, groups


def parse_settings(
    parser: argparse.ArgumentParser, rest: list[str], config: type[Any]
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the parsed arguments, and the settings of the algorithm among them."""
    from raceway.commands.config_options import parsed_settings

    parsed, unknown = parser.parse_known_args(rest)
    if unknown:
        options = [option for action in parser._actions for option in action.option_strings]
        parser.exit(2, f"error: {unknown_name('option', unknown[0].partition('=')[0], options)}\n")
    settings = parsed_settings(parsed, config)
    if parsed.local:
        if settings.get("engine", "inline") != "inline" or settings.get("num_workers", "auto") != "auto":
            parser.error("--local runs in one process: leave out --engine and --num-workers")
        settings["engine"] = "inline"
    return parsed, settings


def runs_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for a command that reads runs and saves a plot."""
    parser = argparse.ArgumentParser(prog=f"raceway {command}", description=description, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a directory of runs")
    parser.add_argument("--out", metavar="FILE", help=f"file of the plot: .png, .svg or .pdf [{command}.png]")
    return parser
