"""The command line: `raceway train <algorithm>`, `raceway explain <algorithm>` and `raceway list`.

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
    for name, text in (("train", "train a policy"), ("explain", "show the plan of an algorithm")):
        command = commands.add_parser(name, help=text, add_help=False)
        command.add_argument("algorithm", nargs="?", metavar="algorithm")
    commands.add_parser("list", help="list the algorithms and the actions they are for")
    known, rest = parser.parse_known_args(arguments)
    if known.command == "list":
        parser.parse_args(arguments)
        return _list()
    if known.algorithm is None:
        print(
            f"usage: raceway {known.command} <algorithm> [options]. `raceway list` has the algorithms.", file=sys.stderr
        )
        return 0 if {"-h", "--help"} & set(rest) else 2
    return _train(known.algorithm, rest) if known.command == "train" else _explain(known.algorithm, rest)


def _version() -> str:
    return f"raceway {metadata.version('raceway')}"


def _list() -> int:
    from raceway.algorithms import ACTIONS, algorithm_names, find_algorithm

    print(f"{'':11}" + "".join(f"{kind:15}" for kind in ACTIONS))
    for name in algorithm_names():
        found = find_algorithm(name)
        marks = "".join(f"{'yes' if kind in found.actions else '-':15}" for kind in ACTIONS)
        print(f"{name:11}{marks}{found.summary}")
    return 0


def _parser(command: str, algorithm: Any) -> argparse.ArgumentParser:
    """Return a parser of the settings of an algorithm."""
    from raceway.runs.options import add_options

    parser = argparse.ArgumentParser(
        prog=f"raceway {command} {algorithm.name}", description=algorithm.summary, allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )  # fmt: skip
    add_options(parser.add_argument_group("settings"), algorithm.config)  # type: ignore[arg-type]
    parser.add_argument("--local", action="store_true", help="one process: short for --engine inline")
    return parser


def _read(parser: argparse.ArgumentParser, rest: list[str], algorithm: Any) -> tuple[argparse.Namespace, Any]:
    """Return the options that were given, and of these the settings of the algorithm."""
    from raceway.runs.options import settings_of

    arguments, unread = parser.parse_known_args(rest)
    if unread:
        options = [option for action in parser._actions for option in action.option_strings]
        parser.exit(2, f"error: {unknown('option', unread[0].partition('=')[0], options)}\n")
    settings = settings_of(arguments, algorithm.config)
    if arguments.local:
        if settings.get("engine", "inline") != "inline" or settings.get("num_workers", "auto") != "auto":
            parser.error("--local is one process: leave out --engine and --num-workers")
        settings["engine"] = "inline"
    return arguments, settings


def _explain(name: str, rest: list[str]) -> int:
    from raceway.algorithms import find_algorithm
    from raceway.training import Training

    algorithm = find_algorithm(name)
    parser = _parser("explain", algorithm)
    option = parser.add_argument
    option("--analyze", action="store_true", help="run it for a while, and show what every operator did")
    option("--seconds", type=float, default=10.0, help="how long to run it (10)")
    option("--svg", metavar="FILE", help="draw the plan into a file")
    option("--mermaid", action="store_true", help="print the plan as a Mermaid diagram")
    arguments, settings = _read(parser, rest, algorithm)
    training = Training(algorithm, algorithm.settings(**settings))
    how = {"analyze": True, "seconds": arguments.seconds} if arguments.analyze else {}
    with training.planned(run=arguments.analyze) as flow:
        if arguments.svg:
            flow.explain("svg", path=arguments.svg, **how)
            print(f"Plan drawn to {arguments.svg}")
        else:
            print(flow.explain("mermaid" if arguments.mermaid else "text", **how))
    return 0


def _train(name: str, rest: list[str]) -> int:
    from raceway.algorithms import find_algorithm

    algorithm = find_algorithm(name)
    parser = _parser("train", algorithm)
    option = parser.add_argument
    option("--seeds", type=_positive, metavar="N", help="train N times, with seeds from --seed on, and compare")
    option("--plot", action="store_true", help="save a picture of the returns in the run's folder, and show it")
    option("--json", action="store_true", help="print the summary as one JSON object on the last line")
    arguments, settings = _read(parser, rest, algorithm)
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
