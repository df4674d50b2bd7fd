"""`raceway plot RUN ...`: plot learning curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from raceway.commands.arguments import runs_parser
from raceway.commands.tables import print_lines
from raceway.errors import ConfigError
from raceway.runs.comparison import (
    EVAL_METRIC,
    RETURN_METRIC,
    Group,
    GroupCurves,
    by_env,
    default_metric,
    group_runs,
    matching_metrics,
    metric_curves,
)

_X_OTHERS = {
    "time": ("time/time_elapsed", "seconds of training"),
    "episodes": ("time/episodes", "episodes"),
}
_Y_LABELS = {RETURN_METRIC: "mean return of the last 100 episodes", EVAL_METRIC: "mean return of evaluations"}


def _labelled(curves: GroupCurves, metric: str) -> GroupCurves:
    """Return curves with the metric in their label, if one is given; of a policy's metric, the policy."""
    parts = metric.split("/")
    name = parts[1] if len(parts) == 3 else metric
    return replace(curves, label=f"{curves.label} {name}") if name else curves


def run(arguments: list[str]) -> int:
    """Plot the learning curves of runs."""
    parser = runs_parser("plot", "Plot learning curves. Runs that differ only in their seed form one group.")
    parser.add_argument("--x", choices=("steps", *_X_OTHERS), default="steps", help="x axis [steps]")
    help_y = "y axis: a metric, a pattern such as 'rollout/*/ep_rew_mean', or eval "
    help_y += f"[{RETURN_METRIC}, or eval for runs without episodes]"
    parser.add_argument("--y", metavar="METRIC", help=help_y)
    parser.add_argument("--show", action="store_true", help="also show the plot in a window")
    options = parser.parse_args(arguments)
    from raceway.ui.comparison_plots import plot_curves
    from raceway.ui.figures import check_matplotlib, has_screen, prepare_plot_path

    check_matplotlib()
    groups, notes = group_runs(options.runs)
    metric = EVAL_METRIC if options.y == "eval" else options.y or default_metric(groups)
    metrics = matching_metrics(metric, groups)
    directory = groups[0].runs[0].path if len(groups) == 1 and len(groups[0].runs) == 1 else Path()
    out = prepare_plot_path(options.out or directory / "plot.png")
    column, x_label = _steps_axis(groups) if options.x == "steps" else _X_OTHERS[options.x]
    panels = {
        env: [
            _labelled(metric_curves(group, column, name), name if len(metrics) > 1 else "")
            for group in env_groups
            for name in metrics
        ]
        for env, env_groups in by_env(groups).items()
    }
    notes += (
        []
        if len(metrics) > 1
        else [
            f"{env}, {curves.label}: left out, it has no {metric}."
            for env, panel in panels.items()
            for curves in panel
            if not curves.seeds
        ]
    )
    panels = {env: [curves for curves in panel if curves.seeds] for env, panel in panels.items()}
    panels = {env: panel for env, panel in panels.items() if panel}
    if not panels:
        raise ConfigError(f"none of these runs has a value of {metric} yet. Wait for an episode to end.")
    path = plot_curves(panels, x_label, _Y_LABELS.get(metric, metric), out, show=options.show and has_screen())
    print_lines(*notes, f"Plot saved to {path}")
    if options.show and not has_screen():
        print_lines("There is no screen to show it on.")
    return 0


def _steps_axis(groups: Sequence[Group]) -> tuple[str, str]:
    """Return the metric and label of an axis of progress: environment steps, or updates."""
    units = {run.progress: group.label for group in groups for run in group.runs}
    if len(units) > 1:
        counted = ", ".join(f"{label} {progress.label}" for progress, label in units.items())
        raise ConfigError(f"these runs count different things: {counted}. Plot them apart, or with --x time.")
    progress = next(iter(units))
    return progress.metric, progress.label
