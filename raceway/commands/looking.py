"""Commands that look at runs: `raceway plot`, `raceway compare` and `raceway list --runs`."""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raceway.errors import ConfigError
from raceway.runs.comparison import (
    EVAL,
    LEVEL,
    RETURN,
    Comparison,
    by_env,
    check_metric,
    compare_groups,
    curves_of,
    group_runs,
)
from raceway.runs.reader import RunFiles, folders_of, number, read_run

_X = {
    "steps": ("time/total_timesteps", "steps of environments"),
    "time": ("time/time_elapsed", "seconds of training"),
    "episodes": ("time/episodes", "episodes"),
}
_CALLED = {RETURN: "mean return of the last 100 episodes", EVAL: "mean return of the last evaluation"}
_CURVES = {RETURN: "mean return of 100 episodes", EVAL: "mean return when evaluated"}
_COLUMNS = ("folder", "algorithm", "env", "seed", "steps", "mean return", "fps", "status", "age")


def plot(arguments: list[str]) -> int:
    """Draw the learning curves of runs."""
    parser = _parser("plot", "Draw learning curves. Runs that differ only in their seed are drawn together.")
    parser.add_argument("--x", choices=_X, default="steps", help="what they are drawn over [steps]")
    parser.add_argument("--y", metavar="METRIC", default=RETURN, help=f"what is drawn [{RETURN}]")
    parser.add_argument("--show", action="store_true", help="show it in a window too")
    given = parser.parse_args(arguments)
    from raceway.ui.comparison_plots import picture_path, plot_curves
    from raceway.ui.plots import has_screen, need_matplotlib

    need_matplotlib()
    groups, notes = group_runs(given.runs)
    y = EVAL if given.y == "eval" else given.y
    check_metric(y, groups)
    only = groups[0].runs[0].path if len(groups) == 1 and len(groups[0].runs) == 1 else Path()
    out = picture_path(given.out or only / "plot.png")
    column, x_label = _X[given.x]
    panels = {env: [curves_of(group, column, y) for group in those] for env, those in by_env(groups).items()}
    notes += [f"{env}, {one.label}: left out, it has no {y}." for env, those in panels.items() for one in those
              if not one.seeds]  # fmt: skip
    panels = {env: [one for one in those if one.seeds] for env, those in panels.items()}
    panels = {env: those for env, those in panels.items() if those}
    if not panels:
        raise ConfigError(f"none of these runs has a value of {y} yet. Wait for an episode to end.")
    path = plot_curves(panels, x_label, _CURVES.get(y, y), out, show=given.show and has_screen())
    _say(*notes, f"Plot saved to {path}")
    if given.show and not has_screen():
        _say("There is no screen to show it on.")
    return 0


def compare(arguments: list[str]) -> int:
    """Compare the final scores of groups of runs."""
    parser = _parser("compare", "Compare final scores, by their interquartile mean and P(X > Y), with intervals.")
    parser.add_argument(
        "--metric", default="return", metavar="NAME",
        help="return (mean of the last 100 episodes), eval (the last evaluation), or the last of any metric [return]",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    given = parser.parse_args(arguments)
    metric = {"return": RETURN, "eval": EVAL}.get(given.metric, given.metric)
    groups, notes = group_runs(given.runs)
    if metric != RETURN:
        check_metric(metric, groups)
    found = compare_groups(groups, metric)
    called = _CALLED.get(metric, f"last {metric}")
    picture = _compare_picture(found, called, given.out)
    if given.json:
        _say(json.dumps(_as_json(found, metric, [*notes, *(note for one in found for note in one.notes)], picture)))
        return 0
    for one in found:
        _say(*_comparison_lines(one, called), "")
    _say(*notes, f"Picture saved to {picture}" if picture else "(no picture: pip install 'raceway[plot]')")
    return 0


def list_runs(arguments: list[str]) -> int:
    """List the runs of a folder, the newest last."""
    parser = argparse.ArgumentParser(prog="raceway list --runs", description="List runs, the newest last.")
    parser.add_argument("folder", nargs="?", default="runs", metavar="DIR", help="the folder they are in [runs]")
    folder = Path(parser.parse_args(arguments).folder)
    if not folder.exists() and str(folder) == "runs":
        raise ConfigError(
            "there is no folder 'runs' here. Train something first, or say which: raceway list --runs DIR"
        )
    found, unread = list[tuple[float, tuple[str, ...]]](), list[str]()
    for one in folders_of(folder):
        try:
            run = read_run(one)
            found.append((run.started, _listed(run)))
        except ConfigError as error:  # the others can still be listed
            unread.append(str(error))
    rows = [row for _, row in sorted(found, key=lambda entry: entry[0])]
    _say(*table(_COLUMNS, rows, right=("seed", "steps", "mean return", "fps", "age")), *unread)
    return 0


def _parser(command: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"raceway {command}", description=about, allow_abbrev=False)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run, or one that holds runs")
    parser.add_argument("--out", metavar="FILE", help=f"where the picture goes: a .png or .svg [{command}.png]")
    return parser


def _compare_picture(found: Sequence[Comparison], called: str, out: str | None) -> Path | None:
    """Draw it, if there is something to draw with; if a file was asked for, there must be."""
    if out is None and importlib.util.find_spec("matplotlib") is None:
        return None
    from raceway.ui.comparison_plots import picture_path, plot_comparisons

    drawn = [one for one in found if one.standings]
    return plot_comparisons(drawn, called, picture_path(out or "compare.png"))


def _comparison_lines(one: Comparison, called: str) -> list[str]:
    rows = [
        (place.label, str(len(place.scores)), f"{place.mean:.1f}", f"{place.iqm:.1f}", _span(place.interval, 1))
        for place in one.standings
    ]
    level = f"{100 * LEVEL:.0f} % interval"
    lines = [f"{one.env}: {called}"]
    if not rows:
        return [*lines, *(f"  {note}" for note in one.notes)]
    lines += table(("", "seeds", "mean", "IQM", level), rows, right=("seeds", "mean", "IQM", level), indent=2)
    if one.pairs:
        pairs = [(pair.label, f"{pair.probability:.2f}", _span(pair.interval, 2)) for pair in one.pairs]
        lines += ["", "  probability of improvement"]
        lines += table(("", "P(X > Y)", level), pairs, right=("P(X > Y)", level), indent=2)
    return [*lines, *([""] if one.notes else []), *(f"  {note}" for note in one.notes)]


def _as_json(found: Sequence[Comparison], metric: str, notes: Sequence[str], picture: Path | None) -> dict[str, Any]:
    envs = {
        one.env: {
            "groups": {
                place.label: {
                    "seeds": list(place.scores),
                    "scores": list(place.scores.values()),
                    "mean": place.mean,
                    "iqm": place.iqm,
                    "interval": place.interval,
                }
                for place in one.standings
            },
            "pairs": [
                {
                    "x": pair.first.label,
                    "y": pair.second.label,
                    "probability_of_improvement": pair.probability,
                    "interval": pair.interval,
                }
                for pair in one.pairs
            ],
        }
        for one in found
    }
    return {"metric": metric, "level": LEVEL, "envs": envs, "notes": list(notes), "picture": picture and str(picture)}


def _listed(run: RunFiles) -> tuple[str, ...]:
    fps = number(run.last, "time/fps")
    return (
        str(run.path),
        run.algorithm,
        run.env,
        str(run.seed),
        f"{run.timesteps:,}",
        "-" if run.mean_return is None else f"{run.mean_return:.1f}",
        "-" if fps is None else f"{fps:,.0f}",
        run.status,
        age(time.time() - run.started),
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), indent: int = 0) -> list[str]:
    """Return the lines of a table; the columns named in `right` end at the same place.

    >>> table(("name", "n"), [("a", "10"), ("b", "9")], right=["n"])
    ['name   n', 'a     10', 'b      9']
    """
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        cells = [
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        ]
        lines.append(" " * indent + "  ".join(cells).rstrip())
    return lines


def age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit.

    >>> age(5), age(90), age(7300), age(200_000)
    ('5 s', '1 min', '2 h', '2 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit}"
    return f"{max(0, int(seconds))} s"


def _span(interval: tuple[float, float] | None, digits: int) -> str:
    return "none" if interval is None else f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)
