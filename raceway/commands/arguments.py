"""Arguments that commands share: the algorithm or run as the first argument, and the settings of an algorithm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from raceway.checks import unknown_name
from raceway.commands.config_file_options import config_option
from raceway.errors import ConfigError

if TYPE_CHECKING:
    from raceway.commands.config_options import EffectiveSettings, OptionGroup

_HELP = {"-h", "--help"}


def wide_help(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter with room for long options."""
    return argparse.HelpFormatter(prog, max_help_position=32, width=110)


def split_first(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return the first argument, if it is positional (else None), and the rest."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def split_algorithm(command: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the algorithm's name, which is the first argument or in a file, and the other arguments.

    The file is that of --config, or that of --policies, whose first algorithm it is.

    Without either, exit with the command's usage.
    """
    name, rest = split_first(arguments)
    if name is None and (path := config_option(rest)) is not None:
        from raceway.runs.settings_file import read_settings_file

        name = read_settings_file(path).algorithm
        if name is None:
            raise ConfigError(f"{path} names no algorithm. Add one to it, or name it first: raceway {command} ppo ...")
    if name is None:
        from raceway.commands.policy_options import algorithm_of_policies

        name = algorithm_of_policies(rest)
    if name is None:
        from raceway.algorithms import algorithm_names

        usage = f"{command} <algorithm> [options], for example: raceway {command} ppo --env cartpole"
        names = ", ".join(algorithm_names())
        sys.exit(print_usage(f"{usage}\n\nAlgorithms: {names}. Options: raceway {command} <algorithm> --help", rest))
    return name, rest


def print_usage(text: str, rest: list[str]) -> int:
    """Print the usage of a command, and return its exit code: 0 if help was asked for."""
    asked = bool(_HELP & set(rest))
    print(f"usage: raceway {text}.", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


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
    parser: argparse.ArgumentParser,
    rest: list[str],
    config: type[Any],
    effective: Callable[[dict[str, Any], argparse.Namespace], EffectiveSettings],
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """Return the parsed arguments, and the settings of the algorithm among them. With --help, print it and exit.

    Args:
        parser: the parser.
        rest: the arguments.
        config: the algorithm's config.
        effective: returns what the settings and other arguments would result in, for the help.
    """
    from raceway.commands.config_options import parsed_settings, show_effective

    parsed, unknown = parser.parse_known_args([argument for argument in rest if argument not in _HELP])
    settings = parsed_settings(parsed, config)
    if parsed.local:
        if settings.get("engine", "inline") != "inline" or settings.get("num_workers", "auto") != "auto":
            parser.error("--local runs in one process: leave out --engine and --num-workers")
        settings["engine"] = "inline"
    if _HELP & set(rest):
        show_effective(parser, config, effective(settings, parsed))
        parser.print_help()
        parser.exit()
    if unknown:
        parser.exit(2, f"error: {_unknown_argument(unknown[0], parser, config)}\n")
    return parsed, settings


def _unknown_argument(argument: str, parser: argparse.ArgumentParser, config: type[Any]) -> str:
    """Return the error for an argument that is no option, with the option that was probably meant."""
    from raceway.commands.config_options import field_docs
    from raceway.settings.progress import budget_hint

    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}. Settings are options, such as --env {argument}; see --help."
    option = argument.partition("=")[0]
    words = option.strip("-").replace("-", " ").replace("_", " ")
    noun = config.progress.noun
    if words in (noun, f"time{noun}"):
        return f"unknown option {option!r}. The number of {noun} is --{_dashes(config.progress.setting)}."
    described = [name for name, text in field_docs(config).items() if text.lower().startswith(words.lower())]
    if described:
        return f"unknown option {option!r}. The {words} is --{_dashes(described[0])}."
    options = [name for action in parser._actions for name in action.option_strings]
    return str(unknown_name("option", option, options, budget_hint(option, config.progress)))


def _dashes(name: str) -> str:
    return name.replace("_", "-")


def runs_parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser for a command that reads runs and saves a plot."""
    parser = argparse.ArgumentParser(prog=f"raceway {command}", description=description, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run directory, or a directory of runs")
    parser.add_argument("--out", metavar="FILE", help=f"file of the plot: .png, .svg or .pdf [{command}.png]")
    return parser


def parse_count(text: str) -> int:
    """Return the whole number of at least 1 that an argument is."""
    if not _is_decimal(text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def parse_seed(text: str) -> int:
    """Return the whole number of at least 0 that an argument is."""
    if not _is_decimal(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _is_decimal(text: str) -> bool:
    return text.isascii() and text.isdecimal()
