"""`raceway explain <algorithm>`: show the plan of an algorithm."""

from __future__ import annotations

from functools import partial

from raceway.commands.arguments import parse_settings, settings_parser, split_algorithm


def run(arguments: list[str]) -> int:
    """Show the plan of an algorithm, or with --analyze run it and show its counters."""
    from raceway.algorithms import find_algorithm
    from raceway.commands.config_options import effective_settings

    name, rest = split_algorithm("explain", arguments)
    algorithm = find_algorithm(name)
    parser, _ = settings_parser("explain", name, algorithm.config, algorithm.summary)
    option = parser.add_argument_group("plan").add_argument
    option("--analyze", action="store_true", help="Run the plan, and show the counters of every operator.")
    option("--seconds", type=float, default=10.0, help="Duration of that run in seconds. [10]")
    option("--svg", metavar="FILE", help="Save a diagram of the plan as SVG.")
    option("--mermaid", action="store_true", help="Print the plan as a Mermaid diagram.")
    options, settings = parse_settings(parser, rest, algorithm.config, partial(effective_settings, algorithm))
    from raceway.algorithms.setting_sources import SOURCES, describe_sources
    from raceway.training.train import Training

    training = Training(algorithm, algorithm.settings(**settings), setting_sources=algorithm.sources(settings))
    analysis = {"analyze": True, "seconds": options.seconds} if options.analyze else {}
    with training.open_flow(run=options.analyze) as flow:
        if options.svg:
            flow.explain("svg", path=options.svg, **analysis)
            print(f"Plan saved to {options.svg}")
        elif options.mermaid:
            print(flow.explain("mermaid", **analysis))
        else:
            print(flow.explain("text", **analysis), "", sep="\n")
            print(*describe_sources(training.cfg, training.setting_sources, training.env.name, SOURCES), sep="\n")
    return 0
