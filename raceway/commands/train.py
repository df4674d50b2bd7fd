"""`raceway train <algorithm>`: train a policy."""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from raceway.commands.arguments import parse_settings, settings_parser, split_algorithm
from raceway.commands.training_output import add_output_options, run_training
from raceway.errors import ConfigError
from raceway.signals import EXIT_CODES


def run(arguments: list[str]) -> int:
    """Train a policy, once or with several seeds."""
    from raceway.algorithms import find_algorithm
    from raceway.commands.config_options import effective_settings, parse_positive_int

    name, rest = split_algorithm("train", arguments)
    algorithm = find_algorithm(name)
    parser, groups = settings_parser("train", name, algorithm.config, algorithm.summary)
    option = groups["run"].add_argument
    option("--seeds", type=parse_positive_int, metavar="N", help="Train with N seeds, from --seed on, and compare.")
    option("--resume", metavar="auto", help="auto: resume the run in --run-dir, if there is one.")
    add_output_options(groups["output"])
    options, settings = parse_settings(parser, rest, algorithm.config, partial(effective_settings, algorithm))
    if options.seeds:
        if options.resume:
            raise ConfigError("--resume is for one run. Resume each of the runs of --seeds with: raceway resume RUN")
        return _train_seeds(name, settings, options)
    from raceway.training.train import train

    return run_training(options, lambda callbacks: train(name, callbacks=callbacks, resume=options.resume, **settings))


def _train_seeds(algorithm: str, settings: dict[str, Any], options: argparse.Namespace) -> int:
    from raceway.training.train_seeds import train_seeds
    from raceway.ui.figures import check_matplotlib, has_screen
    from raceway.ui.progress import display_for

    if options.plot:
        check_matplotlib()
    first = settings.pop("seed", 0)
    seeds = range(first, first + options.seeds)
    outcome = train_seeds(
        algorithm, seeds, make_callback=lambda: display_for(sys.stdout), show=options.plot and has_screen(), **settings
    )
    print(*outcome.lines, sep="\n", flush=True)
    if options.json:
        print(json.dumps(outcome.summary), flush=True)
    return EXIT_CODES.get(outcome.summary["stopped_by"], 0)
