"""The command line: runs the module of `raceway.commands` that has the name of the command.

Only the module of the command is imported, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from importlib import metadata

from raceway.checks import check_choice, unknown_name
from raceway.errors import INTERRUPTS, ConfigError, EnvironmentFailed, OperatorError, RacewayError
from raceway.imports import fast_imports

INTERRUPTED = 130

COMMANDS = {
    "train": "train a policy: raceway train <algorithm>",
    "resume": "resume a run from its latest checkpoint: raceway resume RUN",
    "eval": "evaluate a trained policy, and record a video of it",
    "record": "record a dataset with a trained policy: raceway record RUN",
    "inspect": "describe and check a dataset: raceway inspect DATASET",
    "plot": "plot learning curves",
    "compare": "compare runs, with confidence intervals",
    "list": "list the algorithms, or with --runs the runs",
    "explain": "show the plan of an algorithm: raceway explain <algorithm>",
}

_LIBRARIES = {
    "train": "raceway.training.train",
    "resume": "raceway.training.train",
    "explain": "raceway.training.train",
}
"""What a command imports in any case, for help too."""


def main(argv: list[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        _configure_logging()
        return _run(arguments, own_process=argv is None)
    except RacewayError as error:
        print(f"error: {format_error(error)}", file=sys.stderr)
        return 1
    except INTERRUPTS as stop:
        return stop.args[0] if stop.args and isinstance(stop.args[0], int) else INTERRUPTED
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _configure_logging() -> None:
    level = os.environ.get("RACEWAY_LOG", "").upper() or "WARNING"
    check_choice("level in RACEWAY_LOG", level, logging.getLevelNamesMapping())
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s")


def format_error(error: RacewayError) -> str:
    """Return the message of an error, with its notes; a failed environment comes before the operator it failed in."""
    text = str(error)
    if isinstance(error, OperatorError) and isinstance(error.original, EnvironmentFailed):
        cause = error.original.__cause__
        text = str(error.original) if cause is None else f"{error.original}\n\n{error}"
    if isinstance(error, OperatorError) and isinstance(error.original, ConfigError):
        text = f"{error.original}\n  in {error.operator}"  # a mistake in the settings: frames would not help
    return "\n\n".join([text, *getattr(error, "__notes__", ())])


def _run(arguments: list[str], *, own_process: bool) -> int:
    parser = argparse.ArgumentParser(prog="raceway", description="Distributed reinforcement learning as a dataflow.")
    parser.add_argument("--version", action="version", version=f"raceway {metadata.version('raceway')}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        raise unknown_name("command", arguments[0], COMMANDS)
    command = parser.parse_known_args(arguments)[0].command
    with fast_imports(permanent=own_process):
        importlib.import_module(_LIBRARIES.get(command, "raceway"))
    return int(importlib.import_module(f"raceway.commands.{command}").run(arguments[1:]))


def entry() -> None:
    """Run the command line, for `python -m raceway`."""
    sys.exit(main())
