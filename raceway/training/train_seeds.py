"""`train_seeds`: the same training with several seeds, and statistics over them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from raceway.algorithms import find_algorithm
from raceway.machine import seconds_since_process_start
from raceway.runs.comparison import EVAL_METRIC, RETURN_METRIC
from raceway.runs.directory import RunDirectory
from raceway.runs.recorder import Result, file_name_part
from raceway.runs.settings_file import SettingsFile, merge_settings, open_settings_file
from raceway.runs.statistics import bootstrap_interval, interquartile_mean
from raceway.settings.progress import progress_in
from raceway.signals import EXIT_CODES
from raceway.training.train import train
from raceway.ui.callback import Callback
from raceway.ui.progress_text import MEAN_REWARD
from raceway.ui.terminal_display import RULE
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
        rows = [f"  seed {result.summary['seed']}: {_format_return(score(result.summary))}" for result in self.results]
        if summary["mean"] is None:
            return [RULE, f"{len(self.results)} seeds", *rows, RULE]
        low, high = summary["interval"]
        return [
            RULE,
            f"{summary['algorithm']} on {summary['env']}, {len(self.results)} seeds, {_score_name(summary)}:",
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
    config: str | PathLike[str] | SettingsFile | None = None,
    make_callbacks: Callable[[], Sequence[Callback]] | None = None,
    show: bool = False,
    **settings: Any,
) -> SeedsResult:
    """Train once with every seed, each in a separate run directory, and compute statistics over the runs.

    Args:
        algorithm: the name of the algorithm.
        seeds: the seeds.
        config: a file of settings, as for `train`.
        make_callbacks: creates the callbacks of every run.
        show: also show the plot on the screen.
        settings: settings of the algorithm, or `progress` as for `train`. `run_dir` is the directory that contains the
            run directories.
    """
    file, spec = open_settings_file(config), find_algorithm(algorithm)
    merged = merge_settings(spec, file, settings).values
    env = merged.get("env", spec.config.env)
    name = [spec.name, *([] if env is None else [file_name_part(str(env))]), "seeds"]
    directory = RunDirectory.new(merged.get("run_dir"), "-".join(name))
    directory.close()
    directory.metrics_path.unlink()
    results: list[Result] = []
    for seed in seeds:
        path = str(directory.path / f"seed-{seed}")
        try:
            callbacks = make_callbacks() if make_callbacks else ()
            own = {**settings, "seed": seed, "run_dir": path}
            results.append(train(algorithm, config=file, callbacks=callbacks, **own))
        except BaseException:
            if not results:
                directory.remove()  # unless a run in it had begun
            raise
        if results[-1].summary["stopped_by"] in EXIT_CODES:
            break
    summary = _summarise(results, directory)
    all_curves = {result.summary["seed"]: learning_curve(result.metrics) for result in results}
    curves = {seed: curve for seed, curve in all_curves.items() if curve[0]}  # unless no episode ended
    if curves and importlib.util.find_spec("matplotlib"):
        title = f"{summary['algorithm']} on {summary['env']}, {len(curves)} seeds"
        labels = {"x_label": progress_in(results[0].metrics[-1]).label, "y_label": _score_name(summary).lower()}
        summary["plot"] = str(plot_seeds(curves, title, directory.path / "seeds.png", show, **labels))
    directory.write("summary.json", summary)
    return SeedsResult(summary, results)


def _summarise(results: Sequence[Result], directory: RunDirectory) -> dict[str, Any]:
    """Return the summary of all runs."""
    first = results[0].summary
    summaries = [result.summary for result in results]
    scores = map(score, summaries)
    mean_returns = [value for value in scores if value is not None]
    return {
        "algorithm": first["algorithm"],
        "env": first["env"],
        "engine": first["engine"],
        "seeds": [run["seed"] for run in summaries],
        "mean_returns": mean_returns,
        "mean": float(np.mean(mean_returns)) if mean_returns else None,
        "iqm": interquartile_mean(mean_returns) if mean_returns else None,
        "interval": bootstrap_interval(mean_returns) if mean_returns else None,
        "wall_seconds": seconds_since_process_start(),
        "fps": None if first["fps"] is None else float(np.mean([run["fps"] for run in summaries])),
        "evaluated": first["updates"] is not None,
        "env_failures": sum(run["env_failures"] for run in summaries),
        "worker_restarts": sum(run["worker_restarts"] for run in summaries),
        "stopped_by": results[-1].summary["stopped_by"],
        "weights_sha256": [run["weights_sha256"] for run in summaries],
        "run_dir": str(directory.path),
        "plot": None,
    }


def learning_curve(metrics: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Return the progress and mean returns of a run: those of evaluations if it has no episodes of its own."""
    metric = RETURN_METRIC if any(RETURN_METRIC in row for row in metrics) else EVAL_METRIC
    rows = [row for row in metrics if row.get(metric) is not None]
    return [progress_in(row).of(row) for row in rows], [row[metric] for row in rows]


def score(summary: Mapping[str, Any]) -> float | None:
    """Return the return by which a run is judged: of its last evaluation if it has no episodes of its own."""
    value: float | None = summary["mean_return" if summary["updates"] is None else "eval_mean_return"]
    return value


def _score_name(summary: Mapping[str, Any]) -> str:
    return "Mean Reward of the last evaluation" if summary["evaluated"] else MEAN_REWARD


def _format_return(value: float | None) -> str:
    return "no episode ended" if value is None else f"{value:.1f}"
