"""`raceway train <algorithm>`: train a policy."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from raceway.commands.arguments import parse_settings, settings_parser, split_algorithm
from raceway.commands.config_file_options import add_config_options, config_text, policies_option, read_config_option
from raceway.commands.policy_options import add_policies_option
from raceway.commands.training_output import (
    add_callback_option,
    add_output_options,
    make_callbacks,
    run_training,
)
from raceway.errors import ConfigError
from raceway.signals import EXIT_CODES


def run(arguments: list[str]) -> int:
    """Train a policy, once or with several seeds."""
    from raceway.algorithms import find_algorithm
    from raceway.commands.config_options import effective_settings, parse_positive_int
    from raceway.runs.settings_file import merge_settings

    name, rest = split_algorithm("train", arguments)
    algorithm = find_algorithm(name)
    parser, groups = settings_parser("train", name, algorithm.config, algorithm.summary)
    option = groups["run"].add_argument
    option("--seeds", type=parse_positive_int, metavar="N", help="Train with N seeds, from --seed on, and compare.")
    add_config_options(groups["run"])
    add_policies_option(groups["environment"])
    option("--resume", metavar="auto", help="auto: resume the run in --run-dir, if there is one.")
    add_callback_option(groups["run"])
    add_output_options(groups["output"])
    options, settings = parse_settings(parser, rest, algorithm.config, partial(effective_settings, algorithm))
    file = read_config_option(options)
    merged = merge_settings(algorithm, file, settings)
    if options.print_config:
        print(config_text(algorithm, merged, policies_option(options, file)))
        return 0
    if options.seeds:
        if options.resume:
            raise ConfigError("--resume is for one run. Resume each of the runs of --seeds with: raceway resume RUN")
        first = merged.values.get("seed", 0)
        settings.pop("seed", None)
        settings |= {"config": file, "policies": options.policies}
        return _train_seeds(name, range(first, first + options.seeds), settings, options)
    from raceway.training.train import train

    more = {"config": file, "resume": options.resume, "policies": options.policies}
    return run_training(options, lambda callbacks: train(name, callbacks=callbacks, **more, **settings))


def _train_seeds(algorithm: str, seeds: range, settings: dict[str, Any], options: argparse.Namespace) -> int:
    from raceway.training.train_seeds import train_seeds
    from raceway.ui.figures import check_matplotlib, has_screen

    if options.plot:
        check_matplotlib()
    outcome = train_seeds(
        algorithm, seeds, make_callbacks=partial(make_callbacks, options), show=options.plot and has_screen(),
        **settings,
    )  # fmt: skip
    print(*outcome.lines, sep="\n", flush=True)
    if options.json:
        print(json.dumps(outcome.summary), flush=True)
    return EXIT_CODES.get(outcome.summary["stopped_by"], 0)
