"""`raceway compare RUN ...`: compare the final scores of groups of runs."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
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
    group_runs,
)

_METRIC_LABELS = {
    RETURN_METRIC: "mean return of the last 100 episodes",
    EVAL_METRIC: "mean return of the last evaluation",
}


def run(arguments: list[str]) -> int:
    """Compare the final scores of groups of runs."""
    parser = runs_parser(
        "compare", "Compare final scores: interquartile mean and probability of improvement, with confidence intervals."
    )
    parser.add_argument(
        "--metric", default="return", metavar="NAME",
        help="return (mean of the last 100 episodes), eval (the last evaluation), or the last value of any metric "
        "[return]",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(arguments)
    metric = {"return": RETURN_METRIC, "eval": EVAL_METRIC}.get(options.metric, options.metric)
    groups, notes = group_runs(options.runs)
    if metric != RETURN_METRIC:
        check_metric(metric, groups)
    comparisons = compare_groups(groups, metric)
    label = _METRIC_LABELS.get(metric, f"last {metric}")
    plot = _save_plot(comparisons, label, options.out)
    if options.json:
        all_notes = [*notes, *(note for comparison in comparisons for note in comparison.notes)]
        print_lines(json.dumps(_as_json(comparisons, metric, all_notes, plot)))
        return 0
    for comparison in comparisons:
        print_lines(*_comparison_lines(comparison, label), "")
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


def _comparison_lines(comparison: Comparison, label: str) -> list[str]:
    rows = [
        (group.label, str(len(group.scores)), f"{group.mean:.1f}", f"{group.iqm:.1f}", _interval(group.interval, 1))
        for group in comparison.groups
    ]
    level = f"{100 * CONFIDENCE_LEVEL:.0f} % interval"
    lines = [f"{comparison.env}: {label}"]
    if not rows:
        return [*lines, *(f"  {note}" for note in comparison.notes)]
    lines += format_table(("", "seeds", "mean", "IQM", level), rows, right=("seeds", "mean", "IQM", level), indent=2)
    if comparison.pairs:
        pairs = [(pair.label, f"{pair.probability:.2f}", _interval(pair.interval, 2)) for pair in comparison.pairs]
        lines += ["", "  probability of improvement"]
        lines += format_table(("", "P(X > Y)", level), pairs, right=("P(X > Y)", level), indent=2)
    return [*lines, *([""] if comparison.notes else []), *(f"  {note}" for note in comparison.notes)]


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
