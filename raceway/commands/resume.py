"""`raceway resume RUN`: resume a run from its latest checkpoint."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from raceway.commands.arguments import parse_settings, print_usage, settings_parser, split_first
from raceway.commands.training_output import add_callback_option, add_output_options, run_training

if TYPE_CHECKING:
    from raceway.commands.config_options import EffectiveSettings


def run(arguments: list[str]) -> int:
    """Resume a run."""
    from raceway.algorithms import AlgorithmConfig
    from raceway.runs.config_file import read_config
    from raceway.runs.resume import algorithm_of_run
    from raceway.settings.groups import changeable_on_resume

    directory, rest = split_first(arguments)
    if directory is None:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in changeable_on_resume(AlgorithmConfig))
        return print_usage(
            "resume RUN [options]. `raceway list --runs` has the runs; `raceway resume RUN --help` explains the "
            f"options: {names}, --env, --network, --trust, --callback, --local, --plot, --json",
            rest,
        )
    about = read_config(directory)
    config = algorithm_of_run(about, trust="--trust" in rest).config
    description = "Resume a run from its latest checkpoint."
    shown = (*changeable_on_resume(config), "env", "network")
    parser, groups = settings_parser("resume", "RUN", config, description, shown)
    groups["run"].add_argument("--trust", action="store_true", help="Import the modules that the run names.")
    add_callback_option(groups["run"])
    add_output_options(groups["output"])
    options, settings = parse_settings(parser, rest, config, partial(_effective_settings, about, config))
    from raceway.training.train import resume

    return run_training(
        options, lambda callbacks: resume(directory, callbacks=callbacks, trust=options.trust, **settings)
    )


def _effective_settings(
    about: Mapping[str, Any], config: type[Any], settings: Mapping[str, Any], options: argparse.Namespace
) -> EffectiveSettings:
    """Return what the settings of a run, and those that change, result in."""
    from raceway.algorithms.setting_sources import USER, known_sources
    from raceway.commands.config_options import NOTE, EffectiveSettings

    sources = {**known_sources(config, about["setting_sources"]), **dict.fromkeys(settings, USER)}
    return EffectiveSettings({**about["config"], **settings}, sources, NOTE)
