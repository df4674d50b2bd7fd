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


def run_training(options: argparse.Namespace, train: Callable[[Sequence[Callback]], Result]) -> int:
    """Run a training with a display, print its results, and return the exit code."""
    from raceway.ui.figures import check_matplotlib, has_screen
    from raceway.ui.progress import display_for
    from raceway.ui.training_plots import plot_returns

    if options.plot:
        check_matplotlib()
    result = train([display_for(sys.stdout)])
    if options.plot and result.returns:
        title = f"{result.summary['algorithm']} on {result.summary['env']}, seed {result.summary['seed']}"
        path = plot_returns(result.metrics, title, result.path / "returns.png", show=has_screen())
        print(f"Plot saved to {path}", flush=True)
    if options.json:
        print(json.dumps(result.summary), flush=True)
    return EXIT_CODES.get(result.summary["stopped_by"], 0)
