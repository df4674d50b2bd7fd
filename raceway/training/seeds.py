"""`train_seeds`: the same training with several seeds, and what they have in common."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raceway.machine import since_start
from raceway.rl import bootstrap_interval, interquartile_mean
from raceway.runs.directory import RunDirectory
from raceway.runs.recorder import Result, plain_name
from raceway.signals import EXIT_CODES
from raceway.training.train import train
from raceway.ui.display import RULE, Watcher
from raceway.ui.plots import plot_seeds


@dataclass
class Seeds:
    """What came of several runs that differ in their seed."""

    summary: dict[str, Any]
    results: list[Result]

    @property
    def lines(self) -> list[str]:
        """What a person reads of them."""
        found = self.summary
        rows = [f"  seed {one.summary['seed']}: {_shown(one.summary['mean_return'])}" for one in self.results]
        if found["mean"] is None:
            return [RULE, f"{len(self.results)} seeds", *rows, RULE]
        low, high = found["interval"]
        return [
            RULE,
            f"{found['algorithm']} on {found['env']}, {len(self.results)} seeds: mean return of the last 100 episodes",
            *rows,
            f"  mean: {found['mean']:.1f}",
            f"  interquartile mean: {found['iqm']:.1f}  (95 % bootstrap interval {low:.1f} to {high:.1f})",
            f"  Plot saved to {found['plot']}" if found["plot"] else "  (no plot: pip install 'raceway[plot]')",
            RULE,
        ]


def train_seeds(
    algorithm: str,
    seeds: Sequence[int],
    *,
    watcher: Callable[[], Watcher] | None = None,
    show: bool = False,
    **settings: Any,
) -> Seeds:
    """Train once with every seed, each in a folder of its own, and say what they have in common.

    Args:
        algorithm: its name.
        seeds: the seeds.
        watcher: makes a watcher for every run.
        show: show the plot on the screen too.
        settings: of the algorithm. `run_dir` is the folder that the runs' folders are in.
    """
    folder = RunDirectory.new(
        settings.pop("run_dir", None), f"{algorithm}-{plain_name(str(settings.get('env', 'cartpole')))}-seeds"
    )
    folder.close()
    folder.metrics_path.unlink()
    results = []
    for seed in seeds:
        path = str(folder.path / f"seed-{seed}")
        results.append(train(algorithm, watchers=[watcher()] if watcher else (), seed=seed, run_dir=path, **settings))
        if results[-1].summary["stopped_by"] in EXIT_CODES:
            break
    first = results[0].summary
    finals = [one.summary["mean_return"] for one in results if one.summary["mean_return"] is not None]
    summary = {
        "algorithm": algorithm,
        "env": first["env"],
        "engine": first["engine"],
        "seeds": [one.summary["seed"] for one in results],
        "mean_returns": finals,
        "mean": float(np.mean(finals)) if finals else None,
        "iqm": interquartile_mean(finals) if finals else None,
        "interval": bootstrap_interval(finals) if finals else None,
        "wall_seconds": since_start(),
        "fps": float(np.mean([one.summary["fps"] for one in results])),
        "stopped_by": results[-1].summary["stopped_by"],
        "weights_sha256": [one.summary["weights_sha256"] for one in results],
        "run_dir": str(folder.path),
        "plot": None,
    }
    curves = {one.summary["seed"]: curve(one.metrics) for one in results if one.metrics}
    if curves and importlib.util.find_spec("matplotlib"):
        title = f"{algorithm} on {first['env']}, {len(curves)} seeds"
        summary["plot"] = str(plot_seeds(curves, title, folder.path / "seeds.png", show))
    folder.write("summary.json", summary)
    return Seeds(summary, results)


def curve(metrics: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the steps and mean returns of a run."""
    rows = [row for row in metrics if row["rollout/ep_rew_mean"] is not None]
    return [row["time/total_timesteps"] for row in rows], [row["rollout/ep_rew_mean"] for row in rows]


def _shown(value: float | None) -> str:
    return "no episode ended" if value is None else f"{value:.1f}"
