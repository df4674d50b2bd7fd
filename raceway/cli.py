"""The command line: `raceway train <algorithm>` and `raceway list`.

Only what a command needs is imported, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from importlib import metadata
from typing import Any

from raceway.errors import EnvironmentFailed, OperatorError, RacewayError, unknown

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    logging.basicConfig(
        level=os.environ.get("RACEWAY_LOG", "WARNING").upper(), format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        return _run(arguments)
    except RacewayError as error:
        print(f"error: {told(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def told(error: RacewayError) -> str:
    """Return what a user needs to know of an error."""
    if isinstance(error, OperatorError) and isinstance(error.original, EnvironmentFailed):
        cause = error.original.__cause__
        return str(error.original) if cause is None else f"{error.original}\n\n{error}"
    return str(error)


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="raceway", description="Distributed reinforcement learning as a dataflow.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    trainer = commands.add_parser("train", help="train a policy", add_help=False)
    trainer.add_argument("algorithm", nargs="?", metavar="algorithm")
    commands.add_parser("list", help="list the algorithms")
    known, rest = parser.parse_known_args(arguments)
    if known.command == "list":
        parser.parse_args(arguments)
        return _list()
    return _train(known.algorithm, rest)


def _version() -> str:
    return f"raceway {metadata.version('raceway')}"


def _list() -> int:
    from raceway.algorithms import algorithm_names, find_algorithm

    for name in algorithm_names():
        found = find_algorithm(name)
        print(f"{name:12} {', '.join(found.actions):28} {found.summary}")
    return 0


def _train(name: str | None, rest: list[str]) -> int:
    if name is None:
        print("usage: raceway train <algorithm> [options]. `raceway list` has the algorithms.", file=sys.stderr)
        return 0 if {"-h", "--help"} & set(rest) else 2
    from raceway.algorithms import find_algorithm
    from raceway.runs.options import add_options, settings_of

    algorithm = find_algorithm(name)
    parser = argparse.ArgumentParser(
        prog=f"raceway train {name}", description=algorithm.summary, allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )  # fmt: skip
    add_options(parser.add_argument_group("settings"), algorithm.config)  # type: ignore[arg-type]
    option = parser.add_argument
    option("--local", action="store_true", help="one process: short for --engine inline")
    option("--seeds", type=_positive, metavar="N", help="train N times, with seeds from --seed on, and compare")
    option("--plot", action="store_true", help="save a picture of the returns in the run's folder, and show it")
    option("--json", action="store_true", help="print the summary as one JSON object on the last line")
    arguments, unread = parser.parse_known_args(rest)
    if unread:
        options = [option for action in parser._actions for option in action.option_strings]
        parser.exit(2, f"error: {unknown('option', unread[0].partition('=')[0], options)}\n")
    settings = settings_of(arguments, algorithm.config)
    if arguments.local:
        if settings.get("engine", "inline") != "inline" or settings.get("num_workers", "auto") != "auto":
            parser.error("--local is one process: leave out --engine and --num-workers")
        settings["engine"] = "inline"
    return (
        _train_seeds(algorithm, settings, arguments) if arguments.seeds else _train_one(algorithm, settings, arguments)
    )


def _train_one(algorithm: Any, settings: dict[str, Any], arguments: argparse.Namespace) -> int:
    from raceway.runs.display import watcher_for
    from raceway.runs.plots import has_screen, need_matplotlib, plot_returns
    from raceway.training import train

    if arguments.plot:
        need_matplotlib()
    result = train(algorithm.name, watchers=[watcher_for(sys.stdout)], **settings)
    if arguments.plot and result.returns:
        title = f"{algorithm.name} on {result.summary['env']}, seed {result.summary['seed']}"
        path = plot_returns(result.returns, title, result.path / "returns.png", show=has_screen())
        print(f"Plot saved to {path}", flush=True)
    if arguments.json:
        print(json.dumps(result.summary), flush=True)
    return INTERRUPTED if result.summary["stopped_by"] == "interrupt" else 0


def _train_seeds(algorithm: Any, settings: dict[str, Any], arguments: argparse.Namespace) -> int:
    from raceway.comparing import train_seeds
    from raceway.runs.display import watcher_for
    from raceway.runs.plots import has_screen, need_matplotlib

    if arguments.plot:
        need_matplotlib()
    first = settings.pop("seed", 0)
    seeds = range(first, first + arguments.seeds)
    outcome = train_seeds(
        algorithm.name, seeds, watcher=lambda: watcher_for(sys.stdout), show=arguments.plot and has_screen(), **settings
    )
    print(*outcome.lines, sep="\n", flush=True)
    if arguments.json:
        print(json.dumps(outcome.summary), flush=True)
    return INTERRUPTED if outcome.summary["stopped_by"] == "interrupt" else 0


def _positive(text: str) -> int:
    from raceway.runs.options import whole_number

    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def entry() -> None:
    """Run the command line, for `python -m raceway`."""
    sys.exit(main())
