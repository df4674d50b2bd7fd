"""Commands that run something: `raceway train`, `raceway resume`, `raceway explain`; and `raceway list`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from raceway.checks import unknown_name
from raceway.errors import ConfigError
from raceway.signals import EXIT_CODES


def train(arguments: list[str]) -> int:
    """Train a policy."""
    from raceway.algorithms import find_algorithm

    name, rest = _named("train", arguments)
    algorithm = find_algorithm(name)
    parser = _parser("train", algorithm)
    option = parser.add_argument
    option("--seeds", type=_positive, metavar="N", help="train N times, with seeds from --seed on, and compare")
    option("--resume", metavar="auto", help="auto: go on with the run in --run-dir, if there is one")
    _add_outputs(parser)
    given, settings = _read(parser, rest, algorithm)
    if given.seeds:
        if given.resume:
            raise ConfigError(
                "--resume is for one run. Resume each of the runs of --seeds by itself: raceway resume RUN"
            )
        return _train_seeds(algorithm, settings, given)
    from raceway.training.train import train as run

    return _watched(given, lambda watchers: run(name, watchers=watchers, resume=given.resume, **settings))


def resume(arguments: list[str]) -> int:
    """Go on with a run."""
    from raceway.algorithms import find_algorithm
    from raceway.runs.directory import read_config
    from raceway.runs.resume import MAY_CHANGE

    folder, rest = _first(arguments)
    if folder is None:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in MAY_CHANGE)
        return _usage(
            "resume RUN [options]. `raceway list --runs` has the runs; `raceway resume RUN --help` explains the "
            f"options: {options}, --env, --network, --trust, --local, --plot, --json", rest
        )  # fmt: skip
    algorithm = find_algorithm(read_config(folder)["algorithm"])
    parser = _parser("resume", algorithm, (*MAY_CHANGE, "env", "network"))
    parser.add_argument("--trust", action="store_true", help="import the modules that the run names")
    _add_outputs(parser)
    given, settings = _read(parser, rest, algorithm)
    from raceway.training.train import resume as run

    return _watched(given, lambda watchers: run(folder, watchers=watchers, trust=given.trust, **settings))


def explain(arguments: list[str]) -> int:
    """Show the plan of an algorithm."""
    from raceway.algorithms import find_algorithm

    name, rest = _named("explain", arguments)
    algorithm = find_algorithm(name)
    parser = _parser("explain", algorithm)
    option = parser.add_argument
    option("--analyze", action="store_true", help="run it for a while, and show what every operator did")
    option("--seconds", type=float, default=10.0, help="how long to run it (10)")
    option("--svg", metavar="FILE", help="draw the plan into a file")
    option("--mermaid", action="store_true", help="print the plan as a Mermaid diagram")
    given, settings = _read(parser, rest, algorithm)
    from raceway.training.train import Training

    training = Training(algorithm, algorithm.settings(**settings))
    how = {"analyze": True, "seconds": given.seconds} if given.analyze else {}
    with training.planned(run=given.analyze) as flow:
        if given.svg:
            flow.explain("svg", path=given.svg, **how)
            print(f"Plan drawn to {given.svg}")
        else:
            print(flow.explain("mermaid" if given.mermaid else "text", **how))
    return 0


def list_all(arguments: list[str]) -> int:
    """List the algorithms and the actions they are for, or the runs of a folder."""
    parser = argparse.ArgumentParser(prog="raceway list")
    parser.add_argument("--runs", nargs="?", const="runs", metavar="DIR", help="list the runs in a folder [runs]")
    folder = parser.parse_args(arguments).runs
    if folder is not None:
        from raceway.commands.looking import list_runs

        return list_runs([folder])
    from raceway.algorithms import ACTIONS, algorithm_names, find_algorithm

    print(f"{'':11}" + "".join(f"{kind:15}" for kind in ACTIONS))
    for name in algorithm_names():
        found = find_algorithm(name)
        marks = "".join(f"{'yes' if kind in found.actions else '-':15}" for kind in ACTIONS)
        print(f"{name:11}{marks}{found.summary}")
    return 0


def _first(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Return what a command is about, which stands first, and the rest."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return None, arguments


def _usage(text: str, rest: list[str]) -> int:
    print(f"usage: raceway {text}.", file=sys.stderr)
    return 0 if {"-h", "--help"} & set(rest) else 2


def _named(command: str, arguments: list[str]) -> tuple[str, list[str]]:
    """Return the algorithm that a command is about, and the rest."""
    name, rest = _first(arguments)
    if name is None:
        sys.exit(_usage(f"{command} <algorithm> [options]. `raceway list` has the algorithms", rest))
    return name, rest


def _parser(command: str, algorithm: Any, shown: tuple[str, ...] | None = None) -> argparse.ArgumentParser:
    """Return a parser of the settings of an algorithm, with help on those that are shown."""
    from raceway.ui.options import add_options

    parser = argparse.ArgumentParser(
        prog=f"raceway {command} {algorithm.name if shown is None else 'RUN'}", allow_abbrev=False,
        description=algorithm.summary if shown is None else "Go on with a run from its latest checkpoint.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=32, width=110),
    )  # fmt: skip
    add_options(parser.add_argument_group("settings"), algorithm.config, shown)  # type: ignore[arg-type]
    parser.add_argument("--local", action="store_true", help="one process: short for --engine inline")
    return parser


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("--plot", action="store_true", help="save a picture of the returns in the run's folder, and show it")
    option("--json", action="store_true", help="print the summary as one JSON object on the last line")


def _read(parser: argparse.ArgumentParser, rest: list[str], algorithm: Any) -> tuple[argparse.Namespace, Any]:
    """Return the options that were given, and of these the settings of the algorithm."""
    from raceway.ui.options import settings_of

    given, unread = parser.parse_known_args(rest)
    if unread:
        options = [option for action in parser._actions for option in action.option_strings]
        parser.exit(2, f"error: {unknown_name('option', unread[0].partition('=')[0], options)}\n")
    settings = settings_of(given, algorithm.config)
    if given.local:
        if settings.get("engine", "inline") != "inline" or settings.get("num_workers", "auto") != "auto":
            parser.error("--local is one process: leave out --engine and --num-workers")
        settings["engine"] = "inline"
    return given, settings


def _watched(given: argparse.Namespace, run: Any) -> int:
    """Run a training that is shown, and say what came of it."""
    from raceway.ui.display import watcher_for
    from raceway.ui.plots import has_screen, need_matplotlib, plot_returns

    if given.plot:
        need_matplotlib()
    result = run([watcher_for(sys.stdout)])
    if given.plot and result.returns:
        title = f"{result.summary['algorithm']} on {result.summary['env']}, seed {result.summary['seed']}"
        path = plot_returns(result.returns, title, result.path / "returns.png", show=has_screen())
        print(f"Plot saved to {path}", flush=True)
    if given.json:
        print(json.dumps(result.summary), flush=True)
    return EXIT_CODES.get(result.summary["stopped_by"], 0)


def _train_seeds(algorithm: Any, settings: dict[str, Any], given: argparse.Namespace) -> int:
    from raceway.training.seeds import train_seeds
    from raceway.ui.display import watcher_for
    from raceway.ui.plots import has_screen, need_matplotlib

    if given.plot:
        need_matplotlib()
    first = settings.pop("seed", 0)
    seeds = range(first, first + given.seeds)
    outcome = train_seeds(
        algorithm.name, seeds, watcher=lambda: watcher_for(sys.stdout), show=given.plot and has_screen(), **settings
    )
    print(*outcome.lines, sep="\n", flush=True)
    if given.json:
        print(json.dumps(outcome.summary), flush=True)
    return EXIT_CODES.get(outcome.summary["stopped_by"], 0)


def _positive(text: str) -> int:
    from raceway.ui.options import whole_number

    value = whole_number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value
