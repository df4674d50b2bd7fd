"""`raceway explain <algorithm>`: show the plan of an algorithm."""

from __future__ import annotations

import textwrap
from functools import partial

from raceway.commands.arguments import parse_settings, settings_parser, split_algorithm
from raceway.commands.config_file_options import add_config_options, config_text, policies_option, read_config_option
from raceway.commands.policy_options import add_policies_option


def run(arguments: list[str]) -> int:
    """Show the plan of an algorithm, or with --analyze run it and show its counters."""
    from raceway.algorithms import find_algorithm
    from raceway.commands.config_options import effective_settings

    name, rest = split_algorithm("explain", arguments)
    algorithm = find_algorithm(name)
    parser, groups = settings_parser("explain", name, algorithm.config, algorithm.summary)
    add_config_options(groups["run"])
    add_policies_option(groups["environment"])
    option = parser.add_argument_group("plan").add_argument
    option("--analyze", action="store_true", help="Run the plan, and show the counters of every operator.")
    option("--seconds", type=float, default=10.0, help="Duration of that run in seconds. [10]")
    option("--svg", metavar="FILE", help="Save a diagram of the plan as SVG.")
    option("--mermaid", action="store_true", help="Print the plan as a Mermaid diagram.")
    options, settings = parse_settings(parser, rest, algorithm.config, partial(effective_settings, algorithm))
    from raceway.algorithms.setting_sources import SOURCES, describe_sources
    from raceway.runs.settings_file import merge_settings
    from raceway.training.train import make_training
    from raceway.ui.policy_lines import describe_policies

    file = read_config_option(options)
    merged = merge_settings(algorithm, file, settings)
    if options.print_config:
        print(config_text(algorithm, merged, policies_option(options, file)))
        return 0
    policies = options.policies if options.policies is not None or file is None else file.policies
    cfg, sources = algorithm.settings(**merged.values), algorithm.sources(*merged)
    training = make_training(algorithm, cfg, policies=policies, setting_sources=sources)
    analysis = {"analyze": True, "seconds": options.seconds} if options.analyze else {}
    with training.open_flow(run=options.analyze) as flow:
        if options.svg:
            flow.explain("svg", path=options.svg, **analysis)
            print(f"Plan saved to {options.svg}")
        elif options.mermaid:
            print(flow.explain("mermaid", **analysis))
        else:
            print(flow.explain("text", **analysis), "", sep="\n")
            print(*(f"{line}\n" for line in describe_policies(training)), sep="", end="")
            print(*describe_sources(training.cfg, training.setting_sources, training.env.name, SOURCES), sep="\n")
            if source := algorithm.preset_source(merged.values):
                print(textwrap.fill(f"Source of the preset: {source}", 110, subsequent_indent="  "))
    return 0
