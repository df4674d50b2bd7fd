"""Plots of several runs: learning curves, and comparisons of groups of seeds."""

from __future__ import annotations

import textwrap
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
_TITLE_CHARACTERS, _LEGEND_CHARACTERS, _LABEL_CHARACTERS, _MAX_PAIR_CHARACTERS = 40, 60, 40, 16
_NO_BREAK = "\N{NO-BREAK SPACE}"
_INCHES_PER_CHARACTER = 0.075  # of small text
_PANEL_WIDTH, _PAIR_PITCH = 4.4, 0.32  # in inches
_GREY, _DARK_GREY = "#8a8a8a", "#222222"


def plot_curves(
    panels: Mapping[str, Sequence[GroupCurves]], x_label: str, y_label: str, path: Path, show: bool = False
) -> Path:
    """Plot learning curves, one panel per environment, and one legend below them.

    Every seed is a thin line. A group of several seeds also has its mean and a band, the interquartile range; both end
    where the shortest run does.
    """
    plt = import_pyplot(show)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    width, height = (9.0, 4.6) if len(panels) == 1 else (5.4 * columns, 4.0 * rows)
    entries = _legend_entries(plt, panels)
    num_columns, legend_height = _legend_size(list(entries), width)
    size = width, height + legend_height
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    styles = _assign_styles([group.label for groups in panels.values() for group in groups])
    for axes, (env, groups) in zip(grid.flat, panels.items(), strict=False):
        for group in groups:
            _plot_group(axes, group, *styles[group.label])
        _style_axes(axes, env, _TITLE_CHARACTERS * (2 if columns == 1 else 1))
        axes.set(xlabel=x_label, ylabel=y_label)
        if axes.dataLim.x1 >= 1000:
            axes.xaxis.set_major_formatter(plt.matplotlib.ticker.EngFormatter(sep=""))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    options = {"loc": "outside lower left", "ncols": num_columns, "frameon": False, "fontsize": "small"}
    figure.legend(list(entries.values()), list(entries), **options)
    return save_figure(plt, figure, path, show)


def _legend_entries(plt: Any, panels: Mapping[str, Sequence[GroupCurves]]) -> dict[str, Any]:
    """Return the lines of the legend by their text: one for every label, and what lines and bands mean."""
    seeds: dict[str, list[int]] = {}
    for group in (group for groups in panels.values() for group in groups):
        seeds.setdefault(group.label, []).append(len(group.seeds))
    styles = _assign_styles(list(seeds))
    entries: dict[str, Any] = {}
    for label, counts in seeds.items():
        few, many = min(counts), max(counts)
        count = format_count(many, "seed") if few == many else f"{few} to {many} seeds"
        colour, style = styles[label]
        line = plt.Line2D([], [], color=colour, ls=style, lw=2.2, marker="o" if _is_point(panels, label) else None)
        entries[_with_count(label, count, _LEGEND_CHARACTERS)] = line
    if max(map(max, seeds.values())) > 1:
        entries["mean of the seeds"] = plt.Line2D([], [], color=_GREY, lw=2.2)
        entries["interquartile range of the seeds"] = plt.matplotlib.patches.Patch(color=_GREY, alpha=0.25, lw=0)
        entries["one seed"] = plt.Line2D([], [], color=_GREY, lw=0.8)
    return entries


def _is_point(panels: Mapping[str, Sequence[GroupCurves]], label: str) -> bool:
    """Whether all curves of a label are single points, which have no line."""
    groups = (group for groups in panels.values() for group in groups if group.label == label)
    return all(_marker(curve) for group in groups for curve in group.seeds.values())


def _legend_size(labels: Sequence[str], width: float) -> tuple[int, float]:
    """Return the number of columns of a legend that fit into a width, and its height. Lengths are in inches.

    >>> _legend_size(["ppo (3 seeds)", "a2c (3 seeds)", "dqn (3 seeds)"], 5.4)
    (3, 0.34)
    """
    longest = max(len(line) for label in labels for line in label.split("\n"))
    num_columns = max(1, min(len(labels), int(width / (0.6 + _INCHES_PER_CHARACTER * longest))))
    num_rows = -(-len(labels) // num_columns)
    tallest = max(label.count("\n") for label in labels) + 1
    return num_columns, round(0.14 + 0.2 * num_rows * tallest, 2)


def _wrap(text: str, num_characters: int) -> str:
    """Return text in lines of at most this many characters.

    >>> _wrap("apex lr=0.1 n_step=3", 12).splitlines()
    ['apex lr=0.1', 'n_step=3']
    """
    return "\n".join(textwrap.wrap(text, num_characters)).replace(_NO_BREAK, " ")


def _with_count(label: str, count: str, num_characters: int) -> str:
    """Return a label with a number of seeds, in lines."""
    return _wrap(f"{label} ({count.replace(' ', _NO_BREAK)})", num_characters)


def _wrap_title(env: str, num_characters: int = _TITLE_CHARACTERS) -> str:
    """Return the name of an environment in lines, if it is long; the module of `module:Id` has its own.

    >>> _wrap_title("CartPole-v1"), _wrap_title("my_package:Env-v0", 16).splitlines()
    ('CartPole-v1', ['my_package:', 'Env-v0'])
    """
    parts = [env] if len(env) <= num_characters else env.replace(":", ":\n").split("\n")
    return "\n".join(_wrap(part, num_characters) for part in parts)


def _assign_styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a line style for every label, the same in every panel."""
    return {
        label: (_COLOURS[index % len(_COLOURS)], _LINE_STYLES[index // len(_COLOURS) % len(_LINE_STYLES)])
        for index, label in enumerate(dict.fromkeys(labels))
    }


def _plot_group(axes: Any, group: GroupCurves, colour: str, style: str) -> None:
    curves = list(group.seeds.values())
    if len(curves) == 1:
        axes.plot(*_thin_out(*curves[0]), style, color=colour, lw=1.8, marker=_marker(curves[0]))
        return
    for curve in curves:
        axes.plot(*_thin_out(*curve), style, color=colour, lw=0.8, alpha=0.4)
    x, table = interpolate(curves)
    low, high = np.quantile(table, [0.25, 0.75], axis=0)
    axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)
    axes.plot(x, table.mean(0), style, color=colour, lw=2.2, marker=_marker((x, x)))


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


def _style_axes(axes: Any, title: str, num_characters: int) -> None:
    axes.set_title(_wrap_title(title, num_characters), loc="left", fontweight="bold")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def plot_comparisons(comparisons: Sequence[Comparison], metric: str, path: Path, show: bool = False) -> Path:
    """Plot one row per environment: interquartile means and probabilities of improvement, with their intervals.

    Groups with long labels are numbered, so that pairs can be named by their numbers.
    """
    plt = import_pyplot(show)
    columns = 2 if any(comparison.pairs for comparison in comparisons) else 1
    rows = [_ComparisonRow(comparison) for comparison in comparisons]
    heights = [row.height for row in rows]
    widths = [_PANEL_WIDTH + max(row.label_width for row in rows), _PANEL_WIDTH + max(row.pair_width for row in rows)]
    figure, grid = plt.subplots(
        len(comparisons), columns, figsize=(sum(widths[:columns]), sum(heights) + 0.4), layout="constrained",
        squeeze=False, height_ratios=heights,
    )  # fmt: skip
    styles = _assign_styles([group.label for comparison in comparisons for group in comparison.groups])
    for axes, row in zip(grid, rows, strict=True):
        intervals = {
            row.labels[group.label]: (group.iqm, group.interval, styles[group.label][0])
            for group in row.comparison.groups
        }
        _plot_intervals(axes[0], intervals, row.bars_height / row.pitch)
        axes[0].set_title(_wrap_title(row.comparison.env), loc="left", fontweight="bold")
        axes[0].set_xlabel(_wrap(f"interquartile mean of the {metric}", _LEGEND_CHARACTERS))
        if columns == 2:
            _plot_pairs(axes[1], row, styles)
    figure.supxlabel("bars: 95 % bootstrap intervals over seeds", fontsize="small", color=_GREY)
    return save_figure(plt, figure, path, show)


class _ComparisonRow:
    """The labels of a comparison, and the room that it needs in inches."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        counts = {group.label: format_count(len(group.scores), "seed") for group in comparison.groups}
        names = comparison.short_names(_MAX_PAIR_CHARACTERS)
        self.labels = {
            label: _with_count(label if names[label] == label else f"{names[label]}  {label}", count, _LABEL_CHARACTERS)
            for label, count in counts.items()
        }
        """The text beside the bar of each group."""
        self.pairs = [(f"{names[pair.first.label]} > {names[pair.second.label]}", pair) for pair in comparison.pairs]
        lines = [line for label in self.labels.values() for line in label.split("\n")]
        self.label_width = _INCHES_PER_CHARACTER * 1.2 * max(map(len, lines))
        self.pair_width = _INCHES_PER_CHARACTER * 1.2 * max((len(name) for name, _ in self.pairs), default=0)
        self.pitch = 0.2 + 0.18 * max(label.count("\n") + 1 for label in self.labels.values())
        """The distance of two bars."""
        self.bars_height = max(self.pitch * len(self.labels), _PAIR_PITCH * len(self.pairs))
        self.height = 1.3 + self.bars_height


def _plot_pairs(axes: Any, row: _ComparisonRow, styles: Mapping[str, tuple[str, str]]) -> None:
    axes.set_visible(bool(row.pairs))
    intervals = {name: (pair.probability, pair.interval, styles[pair.first.label][0]) for name, pair in row.pairs}
    _plot_intervals(axes, intervals, row.bars_height / _PAIR_PITCH)
    axes.set(xlim=(-0.02, 1.02), xlabel="probability that a run of X scores higher, P(X > Y)")
    axes.axvline(0.5, color=_GREY, lw=1, ls="--", zorder=0)
    axes.set_title("Probability of improvement", loc="left", fontweight="bold")


def _plot_intervals(
    axes: Any, intervals: Mapping[str, tuple[float, tuple[float, float] | None, str]], num_bars: float
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
