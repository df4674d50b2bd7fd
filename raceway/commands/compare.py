"""`raceway compare RUN ...`: compare the final scores of groups of runs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raceway.commands.arguments import runs_parser
from raceway.commands.tables import format_table, print_lines
from raceway.runs.comparison import (
    CONFIDENCE_LEVEL,
    EVAL_METRIC,
    RETURN_METRIC,
    Comparison,
    check_metric,
    compare_groups,
    default_metric,
    group_runs,
)

_METRIC_LABELS = {
    RETURN_METRIC: "mean return of the last 100 episodes",
    EVAL_METRIC: "mean return of the last evaluation",
}

_LOG_WIDTH = 120
"""Width of tables where there is no terminal."""


def run(arguments: list[str]) -> int:
    """Compare the final scores of groups of runs."""
    parser = runs_parser(
        "compare", "Compare final scores: interquartile mean and probability of improvement, with confidence intervals."
    )
    parser.add_argument(
        "--metric", metavar="NAME",
        help="return (mean of the last 100 episodes), eval (the last evaluation), or the last value of any metric "
        "[return, or eval for runs without episodes]",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(arguments)
    groups, notes = group_runs(options.runs)
    metric = {"return": RETURN_METRIC, "eval": EVAL_METRIC}.get(options.metric, options.metric)
    metric = default_metric(groups) if metric is None else metric
    if metric != RETURN_METRIC:
        check_metric(metric, groups)
    comparisons = compare_groups(groups, metric)
    label = _METRIC_LABELS.get(metric, f"last {metric}")
    plot = _save_plot(comparisons, label, options.out)
    if options.json:
        all_notes = [*notes, *(note for comparison in comparisons for note in comparison.notes)]
        print_lines(json.dumps(_as_json(comparisons, metric, all_notes, plot)))
        return 0
    width = shutil.get_terminal_size((_LOG_WIDTH, 24)).columns
    for comparison in comparisons:
        print_lines(*_comparison_lines(comparison, label, width), "")
    print_lines(*notes, f"Plot saved to {plot}" if plot else "(no plot: pip install 'raceway[plot]')")
    return 0


def _save_plot(comparisons: Sequence[Comparison], label: str, out: str | None) -> Path | None:
    """Save a plot. Without matplotlib there is none, unless a file was asked for, which is then an error."""
    if out is None and importlib.util.find_spec("matplotlib") is None:
        return None
    from raceway.ui.comparison_plots import plot_comparisons
    from raceway.ui.figures import prepare_plot_path

    with_scores = [comparison for comparison in comparisons if comparison.groups]
    return plot_comparisons(with_scores, label, prepare_plot_path(out or "compare.png"))


def _comparison_lines(comparison: Comparison, label: str, width: int) -> list[str]:
    """Return the tables and notes of a comparison. If labels are too long for this width, groups are numbered."""
    lines = [f"{comparison.env}: {label}"]
    names = comparison.short_names(width)
    tables = _tables(comparison, names)
    if max(map(len, tables), default=0) > width:
        names = comparison.short_names(0)
        tables = _tables(comparison, names)
        for group_label, name in names.items():
            lines += _wrap(f"{name} {group_label}", width, indent=len(name) + 1)
    notes = [line for note in comparison.notes for line in _wrap(note, width)]
    return [*lines, *tables, *([""] if tables and notes else []), *notes]


def _tables(comparison: Comparison, names: Mapping[str, str]) -> list[str]:
    """Return the lines of the tables of groups and pairs, with these names of the groups."""
    if not comparison.groups:
        return []
    level = f"{100 * CONFIDENCE_LEVEL:.0f} % interval"
    rows = [
        (
            names[group.label],
            str(len(group.scores)),
            f"{group.mean:.1f}",
            f"{group.iqm:.1f}",
            _interval(group.interval, 1),
        )
        for group in comparison.groups
    ]
    lines = format_table(("", "seeds", "mean", "IQM", level), rows, right=("seeds", "mean", "IQM", level), indent=2)
    if comparison.pairs:
        pairs = [
            (
                f"{names[pair.first.label]} > {names[pair.second.label]}",
                f"{pair.probability:.2f}",
                _interval(pair.interval, 2),
            )
            for pair in comparison.pairs
        ]
        lines += ["", "  probability of improvement"]
        lines += format_table(("", "P(X > Y)", level), pairs, right=("P(X > Y)", level), indent=2)
    return lines


def _wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Return text in lines that fit into a width, indented by two spaces, and from the second line on by more."""
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent=" " * (2 + indent), **options)


def _as_json(comparisons: Sequence[Comparison], metric: str, notes: Sequence[str], plot: Path | None) -> dict[str, Any]:
    envs = {
        comparison.env: {
            "groups": {
                group.label: {
                    "seeds": list(group.scores),
                    "scores": list(group.scores.values()),
                    "mean": group.mean,
                    "iqm": group.iqm,
                    "interval": group.interval,
                }
                for group in comparison.groups
            },
            "pairs": [
                {
                    "x": pair.first.label,
                    "y": pair.second.label,
                    "probability_of_improvement": pair.probability,
                    "interval": pair.interval,
                }
                for pair in comparison.pairs
            ],
        }
        for comparison in comparisons
    }
    saved_plot = plot and str(plot)
    return {"metric": metric, "level": CONFIDENCE_LEVEL, "envs": envs, "notes": list(notes), "picture": saved_plot}


def _interval(interval: tuple[float, float] | None, digits: int) -> str:
    return "none" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"
