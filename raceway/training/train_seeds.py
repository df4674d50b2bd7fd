"""`train_seeds`: the same training with several seeds, and statistics over them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raceway.machine import seconds_since_process_start
from raceway.runs.directory import RunDirectory
from raceway.runs.recorder import Result, file_name_part
from raceway.runs.statistics import bootstrap_interval, interquartile_mean
from raceway.signals import EXIT_CODES
from raceway.training.train import train
from raceway.ui.callback import Callback
from raceway.ui.terminal_display import MEAN_REWARD, RULE
from raceway.ui.training_plots import plot_seeds


@dataclass
class SeedsResult:
    """The outcome of several runs that differ only in their seed."""

    summary: dict[str, Any]
    results: list[Result]

    @property
    def lines(self) -> list[str]:
        """The summary as lines of text."""
        summary = self.summary
        rows = [
            f"  seed {result.summary['seed']}: {_format_return(result.summary['mean_return'])}"
            for result in self.results
        ]
        if summary["mean"] is None:
            return [RULE, f"{len(self.results)} seeds", *rows, RULE]
        low, high = summary["interval"]
        return [
            RULE,
            f"{summary['algorithm']} on {summary['env']}, {len(self.results)} seeds, {MEAN_REWARD}:",
            *rows,
            f"  mean: {summary['mean']:.1f}",
            f"  interquartile mean: {summary['iqm']:.1f}  (95 % bootstrap interval {low:.1f} to {high:.1f})",
            f"  Plot saved to {summary['plot']}" if summary["plot"] else "  (no plot: pip install 'raceway[plot]')",
            RULE,
        ]


def train_seeds(
    algorithm: str,
    seeds: Sequence[int],
    *,
    make_callback: Callable[[], Callback] | None = None,
    show: bool = False,
    **settings: Any,
) -> SeedsResult:
    """Train once with every seed, each in a separate run directory, and compute statistics over the runs.

    Args:
        algorithm: the name of the algorithm.
        seeds: the seeds.
        make_callback: creates a callback for every run.
        show: also show the plot on the screen.
        settings: settings of the algorithm, or `progress` as for `train`. `run_dir` is the directory that contains the
            run directories.
    """
    directory = RunDirectory.new(
        settings.pop("run_dir", None), f"{algorithm}-{file_name_part(str(settings.get('env', 'cartpole')))}-seeds"
    )
    directory.close()
    directory.metrics_path.unlink()
    results: list[Result] = []
    for seed in seeds:
        path = str(directory.path / f"seed-{seed}")
        callbacks = [make_callback()] if make_callback else ()
        try:
            results.append(train(algorithm, callbacks=callbacks, seed=seed, run_dir=path, **settings))
        except BaseException:
            if not results:
                directory.remove()  # unless a run in it had begun
            raise
        if results[-1].summary["stopped_by"] in EXIT_CODES:
            break
    summary = _summarise(algorithm, results, directory)
    curves = {result.summary["seed"]: learning_curve(result.metrics) for result in results if result.metrics}
    if curves and importlib.util.find_spec("matplotlib"):
        title = f"{algorithm} on {summary['env']}, {len(curves)} seeds"
        summary["plot"] = str(plot_seeds(curves, title, directory.path / "seeds.png", show))
    directory.write("summary.json", summary)
    return SeedsResult(summary, results)


def _summarise(algorithm: str, results: Sequence[Result], directory: RunDirectory) -> dict[str, Any]:
    """Return the summary of all runs."""
    first = results[0].summary
    summaries = [result.summary for result in results]
    mean_returns = [summary["mean_return"] for summary in summaries if summary["mean_return"] is not None]
    return {
        "algorithm": algorithm,
        "env": first["env"],
        "engine": first["engine"],
        "seeds": [run["seed"] for run in summaries],
        "mean_returns": mean_returns,
        "mean": float(np.mean(mean_returns)) if mean_returns else None,
        "iqm": interquartile_mean(mean_returns) if mean_returns else None,
        "interval": bootstrap_interval(mean_returns) if mean_returns else None,
        "wall_seconds": seconds_since_process_start(),
        "fps": float(np.mean([run["fps"] for run in summaries])),
        "env_failures": sum(run["env_failures"] for run in summaries),
        "worker_restarts": sum(run["worker_restarts"] for run in summaries),
        "stopped_by": results[-1].summary["stopped_by"],
        "weights_sha256": [run["weights_sha256"] for run in summaries],
        "run_dir": str(directory.path),
        "plot": None,
    }


def learning_curve(metrics: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the environment steps and mean returns of a run."""
    rows = [row for row in metrics if row["rollout/ep_rew_mean"] is not None]
    return [row["time/total_timesteps"] for row in rows], [row["rollout/ep_rew_mean"] for row in rows]


def _format_return(value: float | None) -> str:
    return "no episode ended" if value is None else f"{value:.1f}"
