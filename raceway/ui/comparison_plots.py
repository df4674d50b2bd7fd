"""Plots of several runs: learning curves, and comparisons of groups of seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raceway.formatting import format_count
from raceway.runs.comparison import Comparison, GroupCurves
from raceway.ui.figures import import_pyplot, save_figure

_COLOURS = ("#1f5f99", "#d1702a", "#2a8c57", "#a33b6f", "#7a5fb0", "#b8860b", "#3fa7b5", "#666666")
_LINE_STYLES = ("-", "--", ":", "-.")
_MAX_POINTS = 1000  # per line
_GREY, _DARK_GREY = "#8a8a8a", "#222222"


def plot_curves(
    panels: Mapping[str, Sequence[GroupCurves]], x_label: str, y_label: str, path: Path, show: bool = False
) -> Path:
    """Plot learning curves, one panel per environment.

    Every seed is a thin line. A group of several seeds also has its mean and a band, the interquartile range; both end
    where the shortest run does.
    """
    plt = import_pyplot(show)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (9, 4.8) if len(panels) == 1 else (5.4 * columns, 4.0 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    styles = _assign_styles([group.label for groups in panels.values() for group in groups])
    for axes, (env, groups) in zip(grid.flat, panels.items(), strict=False):
        for group in groups:
            _plot_group(axes, group, *styles[group.label])
        _style_axes(plt, axes, env, any(len(group.seeds) > 1 for group in groups))
        axes.set(xlabel=x_label, ylabel=y_label)
        if axes.dataLim.x1 >= 1000:
            axes.xaxis.set_major_formatter(plt.matplotlib.ticker.EngFormatter(sep=""))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return save_figure(plt, figure, path, show)


def _assign_styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a line style for every label, the same in every panel."""
    return {
        label: (_COLOURS[index % len(_COLOURS)], _LINE_STYLES[index // len(_COLOURS) % len(_LINE_STYLES)])
        for index, label in enumerate(dict.fromkeys(labels))
    }


def _plot_group(axes: Any, group: GroupCurves, colour: str, style: str) -> None:
    name = f"{group.label} ({format_count(len(group.seeds), 'seed')})"
    curves = list(group.seeds.values())
    if len(curves) == 1:
        axes.plot(*_thin_out(*curves[0]), style, color=colour, lw=1.8, label=name, marker=_marker(curves[0]))
        return
    for curve in curves:
        axes.plot(*_thin_out(*curve), style, color=colour, lw=0.8, alpha=0.4)
    x, table = interpolate(curves)
    low, high = np.quantile(table, [0.25, 0.75], axis=0)
    axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)
    axes.plot(x, table.mean(0), style, color=colour, lw=2.2, label=name, marker=_marker((x, x)))


def interpolate(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Interpolate curves to a common grid over the range they share; return x and one row of values per curve.

    >>> x, table = interpolate([(np.array([0.0, 4.0]), np.array([0.0, 4.0])), (np.array([2.0, 3.0]), np.ones(2))])
    >>> x[[0, -1]], table[:, -1]
    (array([2., 3.]), array([3., 1.]))
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    x = np.linspace(first, max(first, last), 200)
    return x, np.stack([np.interp(x, *curve) for curve in curves])


def _thin_out(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Reduce a curve to at most `_MAX_POINTS` points, each the mean of the points it replaces."""
    if len(x) <= _MAX_POINTS:
        return x, y
    edges = np.linspace(0, len(x), _MAX_POINTS + 1).astype(int)[:-1]
    counts = np.diff([*edges, len(x)])
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def _marker(curve: tuple[np.ndarray, np.ndarray]) -> str | None:
    """Return a dot for a curve with a single point, where a line would be invisible."""
    return "o" if len(np.unique(curve[0])) == 1 else None


def _style_axes(plt: Any, axes: Any, title: str, with_bands: bool) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if with_bands:
        seed_line = plt.Line2D([], [], color=_GREY, lw=0.8)
        band = plt.matplotlib.patches.Patch(color=_GREY, alpha=0.25, lw=0)
        mean_line = plt.Line2D([], [], color=_GREY, lw=2.2)
        handles += [mean_line, band, seed_line]
        labels += ["mean of the seeds", "interquartile range of the seeds", "one seed"]
    axes.legend(handles, labels, frameon=False, fontsize="small")


def plot_comparisons(comparisons: Sequence[Comparison], metric: str, path: Path, show: bool = False) -> Path:
    """Plot one row per environment: interquartile means and probabilities of improvement, with their intervals."""
    plt = import_pyplot(show)
    num_bars = [max(len(comparison.groups), len(comparison.pairs)) for comparison in comparisons]
    columns = 2 if any(comparison.pairs for comparison in comparisons) else 1
    heights = [1.5 + 0.42 * num for num in num_bars]
    figure, grid = plt.subplots(
        len(comparisons), columns, figsize=(6.2 * columns, sum(heights)), layout="constrained", squeeze=False,
        height_ratios=heights,
    )  # fmt: skip
    styles = _assign_styles([group.label for comparison in comparisons for group in comparison.groups])
    for row, comparison, num in zip(grid, comparisons, num_bars, strict=True):
        intervals = {
            f"{group.label} ({format_count(len(group.scores), 'seed')})": (
                group.iqm,
                group.interval,
                styles[group.label][0],
            )
            for group in comparison.groups
        }
        _plot_intervals(row[0], intervals, num)
        row[0].set_title(comparison.env, loc="left", fontweight="bold")
        row[0].set_xlabel(f"interquartile mean of the {metric}")
        if columns == 2:
            _plot_pairs(row[1], comparison, styles, num)
    figure.supxlabel("bars: 95 % bootstrap intervals over seeds", fontsize="small", color=_GREY)
    return save_figure(plt, figure, path, show)


def _plot_pairs(axes: Any, comparison: Comparison, styles: Mapping[str, tuple[str, str]], num_bars: int) -> None:
    axes.set_visible(bool(comparison.pairs))
    intervals = {
        pair.label: (pair.probability, pair.interval, styles[pair.first.label][0]) for pair in comparison.pairs
    }
    _plot_intervals(axes, intervals, num_bars)
    axes.set(xlim=(-0.02, 1.02), xlabel="probability that a run of X scores higher, P(X > Y)")
    axes.axvline(0.5, color=_GREY, lw=1, ls="--", zorder=0)
    axes.set_title("Probability of improvement", loc="left", fontweight="bold")


def _plot_intervals(
    axes: Any, intervals: Mapping[str, tuple[float, tuple[float, float] | None, str]], num_bars: int
) -> None:
    """Plot (value, interval, colour) by label, in a panel with room for `num_bars`."""
    axes.use_sticky_edges = False  # else a bar would touch the edge of the panel
    axes.set_axisbelow(True)
    for position, (value, interval, colour) in enumerate(intervals.values()):
        if interval is not None:
            width = interval[1] - interval[0]
            axes.barh(position, width, left=interval[0], height=0.6, color=colour, alpha=0.65, lw=0)
            axes.vlines(value, position - 0.3, position + 0.3, color=_DARK_GREY, lw=2)
        else:
            axes.plot(value, position, "o", mfc="none", mec=colour, mew=1.8)
    axes.set_yticks(range(len(intervals)), list(intervals))
    axes.set_ylim(num_bars - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.grid(axis="x", alpha=0.25)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
