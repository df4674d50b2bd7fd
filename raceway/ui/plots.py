"""Pictures of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raceway.errors import ConfigError

_DOTS, _LINE, _BAND = "#9bb7d4", "#1f5f99", "#f2a65a"


def plot_returns(returns: Sequence[float], title: str, path: Path, show: bool = False) -> Path:
    """Draw the return of every episode, and their moving average over a hundred."""
    plt = pyplot(show)
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    values = np.asarray(returns, float)
    axes.plot(values, ".", ms=2.5, color=_DOTS, alpha=0.5, label="episode", rasterized=True)
    window = min(100, max(1, len(values)))
    if len(values):
        means = np.convolve(values, np.ones(window) / window, "valid")
        axes.plot(np.arange(window - 1, len(values)), means, color=_LINE, lw=2, label=f"mean of {window}")
    _dress(axes, title, "episode", "return")
    return finish(plt, figure, path, show)


def plot_seeds(
    curves: Mapping[int, tuple[Sequence[float], Sequence[float]]], title: str, path: Path, show: bool = False
) -> Path:
    """Draw learning curves of several seeds, (timesteps, mean returns) each, and the mean and range of them all."""
    plt = pyplot(show)
    figure, axes = plt.subplots(figsize=(9, 4.8), layout="constrained")
    for seed, (steps, means) in curves.items():
        axes.plot(steps, means, color=_DOTS, lw=1, label="one seed" if seed == min(curves) else None)
    until = min(steps[-1] for steps, _ in curves.values())
    grid = np.linspace(0, until, 200)
    table = np.stack([np.interp(grid, steps, means) for steps, means in curves.values()])
    low, high = np.quantile(table, [0.25, 0.75], axis=0)
    axes.fill_between(grid, low, high, color=_BAND, alpha=0.25, lw=0, label="middle half")
    axes.plot(grid, table.mean(0), color=_LINE, lw=2.2, label=f"mean of {len(curves)} seeds")
    _dress(axes, title, "steps of environments", "mean return of 100 episodes")
    axes.xaxis.set_major_formatter(plt.matplotlib.ticker.EngFormatter(sep=""))
    return finish(plt, figure, path, show)


def need_matplotlib() -> None:
    """Refuse now what could only fail after the training."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConfigError("a plot needs matplotlib: pip install 'raceway[plot]'") from error


def has_screen() -> bool:
    """Whether there is one to show a window on."""
    import os
    import sys

    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def pyplot(show: bool) -> Any:
    """Return matplotlib's pyplot, which opens no window unless one is to be shown."""
    need_matplotlib()
    import matplotlib

    if not show:
        matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _dress(axes: Any, title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right", markerscale=4)


def finish(plt: Any, figure: Any, path: Path, show: bool) -> Path:
    """Save a figure, and if it is wanted and can be, show it."""
    figure.savefig(path, dpi=130)
    if show and plt.get_backend().lower() != "agg":  # that is what is left where no toolkit for windows is installed
        plt.show()
    plt.close(figure)
    return path
