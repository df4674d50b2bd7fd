"""Pictures of several runs: learning curves, and how groups of seeds compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.formatting import format_count
from raceway.runs.comparison import Comparison, Curves
from raceway.ui.plots import finish, pyplot

KINDS = (".png", ".svg", ".pdf")
_COLOURS = ("#1f5f99", "#d1702a", "#2a8c57", "#a33b6f", "#7a5fb0", "#b8860b", "#3fa7b5", "#666666")
_STYLES = ("-", "--", ":", "-.")
_MOST_POINTS = 1000  # of one line
_GREY, _INK = "#8a8a8a", "#222222"


def picture_path(name: str | Path) -> Path:
    """Return where a picture goes, having made its folder and refused a kind of file that it cannot be."""
    path = Path(name)
    if path.suffix.lower() not in KINDS:
        raise ConfigError(f"a picture cannot be saved as {str(path)!r}. End the name in {', '.join(KINDS)}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"a picture cannot be saved as {str(path)!r}: {error}. Choose another --out.") from error
    return path


def plot_curves(
    panels: Mapping[str, Sequence[Curves]], x_label: str, y_label: str, path: Path, show: bool = False
) -> Path:
    """Draw learning curves, one panel for each environment.

    Every seed is a thin line, a group of several also its mean and a band: the middle half of the seeds. These end
    where the shortest run does.
    """
    plt = pyplot(show)
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    size = (9, 4.8) if len(panels) == 1 else (5.4 * columns, 4.0 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    looks = _looks([group.label for groups in panels.values() for group in groups])
    for axes, (env, groups) in zip(grid.flat, panels.items(), strict=False):
        for group in groups:
            _draw_group(axes, group, *looks[group.label])
        _dress_curves(plt, axes, env, any(len(group.seeds) > 1 for group in groups))
        axes.set(xlabel=x_label, ylabel=y_label)
        if axes.dataLim.x1 >= 1000:
            axes.xaxis.set_major_formatter(plt.matplotlib.ticker.EngFormatter(sep=""))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    return finish(plt, figure, path, show)


def _looks(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a style of line for every label, the same in every panel."""
    order = enumerate(dict.fromkeys(labels))
    return {
        label: (_COLOURS[place % len(_COLOURS)], _STYLES[place // len(_COLOURS) % len(_STYLES)])
        for place, label in order
    }


def _draw_group(axes: Any, group: Curves, colour: str, style: str) -> None:
    name = f"{group.label} ({format_count(len(group.seeds), 'seed')})"
    curves = list(group.seeds.values())
    if len(curves) == 1:
        axes.plot(*_thinned(*curves[0]), style, color=colour, lw=1.8, label=name, marker=_mark(curves[0]))
        return
    for curve in curves:
        axes.plot(*_thinned(*curve), style, color=colour, lw=0.8, alpha=0.4)
    x, table = on_one_grid(curves)
    low, high = np.quantile(table, [0.25, 0.75], axis=0)
    axes.fill_between(x, low, high, color=colour, alpha=0.16, lw=0)
    axes.plot(x, table.mean(0), style, color=colour, lw=2.2, label=name, marker=_mark((x, x)))


def on_one_grid(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the x that all curves span, and their values there, one row a curve.

    >>> x, table = on_one_grid([(np.array([0.0, 4.0]), np.array([0.0, 4.0])), (np.array([2.0, 3.0]), np.ones(2))])
    >>> x[[0, -1]], table[:, -1]
    (array([2., 3.]), array([3., 1.]))
    """
    first, last = max(x[0] for x, _ in curves), min(x[-1] for x, _ in curves)
    x = np.linspace(first, max(first, last), 200)
    return x, np.stack([np.interp(x, *curve) for curve in curves])


def _thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return at most so many points, each the mean of those that it stands for."""
    if len(x) <= _MOST_POINTS:
        return x, y
    edges = np.linspace(0, len(x), _MOST_POINTS + 1).astype(int)[:-1]
    counts = np.diff([*edges, len(x)])
    return np.add.reduceat(x, edges) / counts, np.add.reduceat(y, edges) / counts


def _mark(curve: tuple[np.ndarray, np.ndarray]) -> str | None:
    """Return a dot for what is a single point, of which a line would show nothing."""
    return "o" if len(np.unique(curve[0])) == 1 else None


def _dress_curves(plt: Any, axes: Any, title: str, with_bands: bool) -> None:
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    if with_bands:
        line = plt.Line2D([], [], color=_GREY, lw=0.8)
        band = plt.matplotlib.patches.Patch(color=_GREY, alpha=0.25, lw=0)
        thick = plt.Line2D([], [], color=_GREY, lw=2.2)
        handles += [thick, band, line]
        labels += ["mean of the seeds", "middle half of the seeds", "one seed"]
    axes.legend(handles, labels, frameon=False, fontsize="small")


def plot_comparisons(found: Sequence[Comparison], metric: str, path: Path, show: bool = False) -> Path:
    """Draw a row for each environment: interquartile means, and probabilities of improvement, with their intervals."""
    plt = pyplot(show)
    lengths = [max(len(one.standings), len(one.pairs)) for one in found]
    columns = 2 if any(one.pairs for one in found) else 1
    heights = [1.5 + 0.42 * length for length in lengths]
    figure, grid = plt.subplots(
        len(found), columns, figsize=(6.2 * columns, sum(heights)), layout="constrained", squeeze=False,
        height_ratios=heights,
    )  # fmt: skip
    looks = _looks([place.label for one in found for place in one.standings])
    for row, one, length in zip(grid, found, lengths, strict=True):
        intervals = {
            f"{place.label} ({format_count(len(place.scores), 'seed')})": (
                place.iqm,
                place.interval,
                looks[place.label][0],
            )
            for place in one.standings
        }
        _draw_intervals(row[0], intervals, length)
        row[0].set_title(one.env, loc="left", fontweight="bold")
        row[0].set_xlabel(f"interquartile mean of the {metric}")
        if columns == 2:
            _draw_pairs(row[1], one, looks, length)
    figure.supxlabel("bars: 95 % bootstrap intervals over seeds", fontsize="small", color=_GREY)
    return finish(plt, figure, path, show)


def _draw_pairs(axes: Any, one: Comparison, looks: Mapping[str, tuple[str, str]], length: int) -> None:
    axes.set_visible(bool(one.pairs))
    found = {pair.label: (pair.probability, pair.interval, looks[pair.first.label][0]) for pair in one.pairs}
    _draw_intervals(axes, found, length)
    axes.set(xlim=(-0.02, 1.02), xlabel="probability that a run of the first is higher, P(X > Y)")
    axes.axvline(0.5, color=_GREY, lw=1, ls="--", zorder=0)
    axes.set_title("Probability of improvement", loc="left", fontweight="bold")


def _draw_intervals(axes: Any, found: Mapping[str, tuple[float, tuple[float, float] | None, str]], length: int) -> None:
    """Draw (middle, interval, colour) by name, in a panel that has room for so many."""
    axes.use_sticky_edges = False  # a bar would end where the panel does
    axes.set_axisbelow(True)
    for place, (middle, interval, colour) in enumerate(found.values()):
        if interval is not None:
            axes.barh(place, interval[1] - interval[0], left=interval[0], height=0.6, color=colour, alpha=0.65, lw=0)
            axes.vlines(middle, place - 0.3, place + 0.3, color=_INK, lw=2)
        else:
            axes.plot(middle, place, "o", mfc="none", mec=colour, mew=1.8)
    axes.set_yticks(range(len(found)), list(found))
    axes.set_ylim(length - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.grid(axis="x", alpha=0.25)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
