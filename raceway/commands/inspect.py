"""`raceway inspect DATASET`: describe a dataset, and check all of it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raceway.commands.arguments import wide_help
from raceway.commands.tables import print_lines
from raceway.imports import fast_imports

if TYPE_CHECKING:
    from raceway.datasets import Dataset

_NUM_BINS = 10
_BAR_WIDTH = 40


def run(arguments: list[str]) -> int:
    """Print the size, spaces and returns of a dataset."""
    options = _parser().parse_args(arguments)
    with fast_imports():
        from raceway.datasets import open_dataset

    dataset = open_dataset(options.dataset)
    report = describe_dataset(dataset)
    if options.json:
        print(json.dumps(report), flush=True)
        return 0
    returns, lengths = dataset.returns(), dataset.lengths()
    terminated, truncated = report["terminated_episodes"], report["truncated_episodes"]
    lines = [
        f"dataset        {dataset.name}",
        f"recorded with  {_describe_source(dataset.about)}",
        f"episodes       {dataset.num_episodes:,}, of which {terminated:,} terminated and {truncated:,} truncated",
        f"steps          {dataset.num_steps:,}",
        f"observations   {dataset.observation_space}",
        f"actions        {dataset.action_space}",
        f"mean return    {returns.mean():.2f} ± {returns.std():.2f}, from {returns.min():.2f} to {returns.max():.2f}",
        f"mean length    {lengths.mean():.1f}, from {lengths.min()} to {lengths.max()}",
    ]
    if report["actions_outside"]:
        lines.append(f"               {report['actions_outside']:,} actions are outside the bounds of their space")
    print_lines(*lines, "", "returns", *(f"  {line}" for line in histogram(returns)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="raceway inspect", description="Describe a dataset, after checking all of its files.", allow_abbrev=False,
        formatter_class=wide_help,
    )  # fmt: skip
    text = "a folder, a .jsonl file, a run with a dataset, or the id of a Minari dataset; several, separated by commas"
    parser.add_argument("dataset", metavar="DATASET", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser


def describe_dataset(dataset: Dataset) -> dict[str, Any]:
    """Return the description of a dataset that `--json` prints. All of the dataset is read, and so checked."""
    from raceway.rl.space_json import space_to_json

    returns, lengths = dataset.returns(), dataset.lengths()
    ends = {name: sum(int(batch[name].sum()) for batch in dataset.batches()) for name in ("terminated", "truncated")}
    return {
        "dataset": dataset.name,
        "sha256": dataset.sha256,
        "about": dataset.about,
        "episodes": dataset.num_episodes,
        "steps": dataset.num_steps,
        "terminated_episodes": ends["terminated"],
        "truncated_episodes": ends["truncated"],
        "observation_space": space_to_json(dataset.observation_space),
        "action_space": space_to_json(dataset.action_space),
        "actions_outside": sum(_num_outside(dataset.action_space, batch["action"]) for batch in dataset.batches()),
        "mean_return": float(returns.mean()),
        "std_return": float(returns.std()),
        "min_return": float(returns.min()),
        "max_return": float(returns.max()),
        "mean_length": float(lengths.mean()),
    }


def _num_outside(space: Any, actions: Any) -> int:
    """Return the number of actions outside the bounds of a Box."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        return 0
    low, high = space.low.astype(actions.dtype), space.high.astype(actions.dtype)
    return int(((actions < low) | (actions > high)).reshape(len(actions), -1).any(1).sum())


def _describe_source(about: dict[str, Any]) -> str:
    """Return a line about what recorded a dataset, as far as it is known."""
    text = f"{about.get('algorithm') or 'an unknown algorithm'} on {about.get('env') or 'an unknown environment'}"
    if isinstance(about.get("steps"), int):
        text += f", after {about['steps']:,} {about.get('unit', 'steps')} of training"
    if "deterministic" in about:
        text += f", {'most likely' if about['deterministic'] else 'sampled'} actions"
    return text


def histogram(values: Sequence[float] | np.ndarray) -> list[str]:
    """Return a histogram as lines of text, each with the range of a bin, a bar, and the number of values.

    >>> histogram([1.0, 1.0])
    ['1.00  ████████████████████████████████████████  2']
    """
    array = np.asarray(values, float)
    if array.min() == array.max():
        return [f"{array.min():.2f}  {'█' * _BAR_WIDTH}  {len(array)}"]
    counts, edges = np.histogram(array, _NUM_BINS)
    labels = [f"{edge:.2f}" for edge in edges]
    width = max(map(len, labels))
    bars = ["█" * max(round(_BAR_WIDTH * count / counts.max()), count > 0) for count in counts.tolist()]
    return [
        f"{labels[i]:>{width}} to {labels[i + 1]:>{width}}  {bars[i]:{_BAR_WIDTH}}  {count}"
        for i, count in enumerate(counts.tolist())
    ]
