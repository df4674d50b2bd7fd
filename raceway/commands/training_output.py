"""What `raceway train` and `raceway resume` print: the display of the training, a plot of the returns, a summary."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from raceway.signals import EXIT_CODES

if TYPE_CHECKING:
    from raceway.commands.config_options import OptionGroup
    from raceway.runs.recorder import Result
    from raceway.ui.callback import Callback


def add_output_options(group: OptionGroup) -> None:
    """Add the options that `run_training` reads."""
    group.add_argument(
        "--plot", action="store_true", help="Save a plot of the returns in the run directory and show it."
    )
    group.add_argument("--json", action="store_true", help="Print the summary as one JSON object on the last line.")


def add_callback_option(group: OptionGroup) -> None:
    """Add the option that `make_callbacks` reads."""
    group.add_argument(
        "--callback", action="append", default=[], metavar="MODULE:CLASS",
        help="Callback that is notified of the training: a class derived from raceway.Callback. Repeatable.",
    )  # fmt: skip


def make_callbacks(options: argparse.Namespace) -> list[Callback]:
    """Return the display, and the callbacks that were named on the command line."""
    from raceway.ui.callback_list import import_callback
    from raceway.ui.progress import display_for

    return [*map(import_callback, options.callback), display_for(sys.stdout)]


def run_training(options: argparse.Namespace, train: Callable[[Sequence[Callback]], Result]) -> int:
    """Run a training with a display, print its results, and return the exit code."""
    from raceway.ui.figures import check_matplotlib, has_screen
    from raceway.ui.training_plots import plot_evaluations, plot_returns

    if options.plot:
        check_matplotlib()
    result = train(make_callbacks(options))
    if options.plot:
        title = f"{result.summary['algorithm']} on {result.summary['env']}, seed {result.summary['seed']}"
        evaluated = any("eval/mean_reward" in row for row in result.metrics)
        plot = plot_returns if result.returns else plot_evaluations if evaluated else None
        if plot is None:
            print("There is no plot: no episode ended, and there was no evaluation (--eval-every N).", flush=True)
        else:
            path = plot(result.metrics, title, result.path / "returns.png", show=has_screen())
            print(f"Plot saved to {path}", flush=True)
    if options.json:
        print(json.dumps(result.summary), flush=True)
    return EXIT_CODES.get(result.summary["stopped_by"], 0)
