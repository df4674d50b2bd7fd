"""Plots of one training: the returns of its episodes or evaluations, and the learning curves of its seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raceway.settings.progress import progress_in
from raceway.ui.figures import import_pyplot, save_figure

_DOT_COLOUR, _LINE_COLOUR, _BAND_COLOUR = "#9bb7d4", "#1f5f99", "#f2a65a"


def plot_returns(metrics: Sequence[Mapping[str, Any]], title: str, path: Path, show: bool = False) -> Path:
    """Plot the return of every episode in rows of metrics, and their moving average over 100 episodes."""
    plt = import_pyplot(show)
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    values = np.array([value for row in metrics for value in row["returns"]], float)
    numbers = np.concatenate([np.arange(-len(row["returns"]), 0) + row["time/episodes"] for row in metrics])
    axes.plot(numbers, values, ".", ms=2.5, color=_DOT_COLOUR, alpha=0.5, label="episode", rasterized=True)
    window = min(100, max(1, len(values)))
    if len(values):
        means = np.convolve(values, np.ones(window) / window, "valid")
        axes.plot(numbers[window - 1 :], means, color=_LINE_COLOUR, lw=2, label=f"mean of {window}")
    _style_axes(axes, title, "episode", "return")
    return save_figure(plt, figure, path, show)


def plot_evaluations(metrics: Sequence[Mapping[str, Any]], title: str, path: Path, show: bool = False) -> Path:
    """Plot the mean return of every evaluation in rows of metrics, with the standard deviation."""
    plt = import_pyplot(show)
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    rows = [row for row in metrics if "eval/mean_reward" in row]
    progress = progress_in(rows[0])
    steps = [progress.of(row) for row in rows]
    means, deviations = (np.array([row[f"eval/{name}_reward"] for row in rows]) for name in ("mean", "std"))
    band = means - deviations, means + deviations
    axes.fill_between(steps, *band, color=_DOT_COLOUR, alpha=0.35, lw=0, label="standard deviation")
    axes.plot(steps, means, color=_LINE_COLOUR, lw=2, marker=".", label="mean of an evaluation")
    _style_axes(axes, title, progress.label, "return")
    return save_figure(plt, figure, path, show)


def plot_seeds(
    curves: Mapping[int, tuple[Sequence[float], Sequence[float]]], title: str, path: Path, show: bool = False, *,
    x_label: str = "environment steps", y_label: str = "mean return of the last 100 episodes",
) -> Path:  # fmt: skip
    """Plot the learning curves of seeds, (environment steps, mean returns), with mean and interquartile range."""
    plt = import_pyplot(show)
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    for seed, (steps, means) in curves.items():
        axes.plot(steps, means, color=_DOT_COLOUR, lw=1, label="one seed" if seed == min(curves) else None)
    last_step = min(steps[-1] for steps, _ in curves.values())
    grid = np.linspace(0, last_step, 200)
    table = np.stack([np.interp(grid, steps, means) for steps, means in curves.values()])
    low, high = np.quantile(table, [0.25, 0.75], axis=0)
    axes.fill_between(grid, low, high, color=_BAND_COLOUR, alpha=0.25, lw=0, label="interquartile range")
    axes.plot(grid, table.mean(0), color=_LINE_COLOUR, lw=2.2, label=f"mean of {len(curves)} seeds")
    _style_axes(axes, title, x_label, y_label)
    axes.xaxis.set_major_formatter(plt.matplotlib.ticker.EngFormatter(sep=""))
    return save_figure(plt, figure, path, show)


def _style_axes(axes: Any, title: str, x_label: str, y_label: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", markerscale=4)
