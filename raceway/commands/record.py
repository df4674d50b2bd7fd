"""`raceway record RUN`: record a dataset of whole episodes with a trained policy."""

from __future__ import annotations

import argparse
import json

from raceway.commands.arguments import parse_count, parse_seed, wide_help
from raceway.commands.inspect import describe_dataset
from raceway.commands.progress_line import Progress
from raceway.imports import fast_imports


def run(arguments: list[str]) -> int:
    """Record episodes of the policy of a run."""
    options = _parser().parse_args(arguments)
    with fast_imports():
        from raceway.loaded_policy import load
        from raceway.recording import record

    policy = load(options.run, options.checkpoint, network=options.network, trust=options.trust)
    with Progress(f"of {options.episodes} episodes") as progress:
        dataset = record(
            policy, options.dataset, num_episodes=options.episodes, env=options.env, seed=options.seed,
            deterministic=not options.stochastic, on_progress=progress,
        )  # fmt: skip
    report = describe_dataset(dataset)
    if options.json:
        print(json.dumps(report), flush=True)
        return 0
    about, sampled = dataset.about, ", sampled actions" if options.stochastic else ""
    print(f"{about['algorithm']} on {about['env']}, after {about['steps']:,} {about['unit']} of training{sampled}")
    print(f"  episodes     {report['episodes']:,}")
    print(f"  steps        {report['steps']:,}")
    print(f"  mean return  {report['mean_return']:.2f} ± {report['std_return']:.2f}, "
          f"from {report['min_return']:.2f} to {report['max_return']:.2f}")  # fmt: skip
    print(f"Dataset saved to {dataset.name}", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raceway record", description="Record whole episodes of the policy of a run as a dataset.",
        allow_abbrev=False, formatter_class=wide_help,
    )  # fmt: skip
    option = parser.add_argument
    option("run", metavar="RUN", help="run directory")
    option("--episodes", type=parse_count, default=100, metavar="N", help="number of episodes [100]")
    option("--dataset", metavar="PATH", help="folder of the dataset, which must not exist [RUN/dataset]")
    option(
        "--stochastic", action="store_true",
        help="sample actions, instead of taking the most likely one, or the one with the highest Q-value",
    )  # fmt: skip
    option("--checkpoint", default="best", metavar="CHECKPOINT", help="best, latest, or a number of steps [best]")
    option("--seed", type=parse_seed, default=0, metavar="N", help="random seed of the episodes and the actions [0]")
    option("--env", metavar="NAME", help="another environment; or that of the run, if it is module:Id")
    option("--network", metavar="NAME", help="the network of the run, if it is module:function")
    option("--trust", action="store_true", help="import modules that the run names")
    option("--json", action="store_true", help="print one JSON object instead of text")
    return parser
