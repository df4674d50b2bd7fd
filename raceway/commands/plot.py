"""`raceway plot RUN ...`: plot learning curves."""

from __future__ import annotations

from pathlib import Path

from raceway.commands.arguments import runs_parser
from raceway.commands.tables import print_lines
from raceway.errors import ConfigError
from raceway.runs.comparison import EVAL_METRIC, RETURN_METRIC, by_env, check_metric, group_runs, metric_curves

_X = {
    "steps": ("time/total_timesteps", "environment steps"),
    "time": ("time/time_elapsed", "seconds of training"),
    "episodes": ("time/episodes", "episodes"),
}
_Y_LABELS = {RETURN_METRIC: "mean return of the last 100 episodes", EVAL_METRIC: "mean return of evaluations"}


def run(arguments: list[str]) -> int:
    """Plot the learning curves of runs."""
    parser = runs_parser("plot", "Plot learning curves. Runs that differ only in their seed form one group.")
    parser.add_argument("--x", choices=_X, default="steps", help="x axis [steps]")
    help_y = f"y axis: a metric, or eval [{RETURN_METRIC}]"
    parser.add_argument("--y", metavar="METRIC", default=RETURN_METRIC, help=help_y)
    parser.add_argument("--show", action="store_true", help="also show the plot in a window")
    options = parser.parse_args(arguments)
    from raceway.ui.comparison_plots import plot_curves
    from raceway.ui.figures import check_matplotlib, has_screen, prepare_plot_path

    check_matplotlib()
    groups, notes = group_runs(options.runs)
    metric = EVAL_METRIC if options.y == "eval" else options.y
    check_metric(metric, groups)
    directory = groups[0].runs[0].path if len(groups) == 1 and len(groups[0].runs) == 1 else Path()
    out = prepare_plot_path(options.out or directory / "plot.png")
    column, x_label = _X[options.x]
    panels = {
        env: [metric_curves(group, column, metric) for group in env_groups]
        for env, env_groups in by_env(groups).items()
    }
    notes += [
        f"{env}, {curves.label}: left out, it has no {metric}."
        for env, panel in panels.items()
        for curves in panel
        if not curves.seeds
    ]
    panels = {env: [curves for curves in panel if curves.seeds] for env, panel in panels.items()}
    panels = {env: panel for env, panel in panels.items() if panel}
    if not panels:
        raise ConfigError(f"none of these runs has a value of {metric} yet. Wait for an episode to end.")
    path = plot_curves(panels, x_label, _Y_LABELS.get(metric, metric), out, show=options.show and has_screen())
    print_lines(*notes, f"Plot saved to {path}")
    if options.show and not has_screen():
        print_lines("There is no screen to show it on.")
    return 0
