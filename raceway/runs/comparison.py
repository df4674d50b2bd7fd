"""Comparing runs: groups of seeds, labels for them, learning curves and statistics of final scores."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from raceway.checks import unknown_name
from raceway.errors import ConfigError
from raceway.formatting import format_count
from raceway.runs.reader import RunFiles, find_runs, numeric_value, run_directories
from raceway.settings.groups import GROUPS, settings_without_effect

RETURN_METRIC, EVAL_METRIC = "rollout/ep_rew_mean", "eval/mean_reward"
CONFIDENCE_LEVEL = 0.95
_IGNORED_SETTINGS = settings_without_effect(*GROUPS)
_IGNORED_PREFIXES = ("eval_", "save_", "checkpoint", "log_")
"""Settings that do not change results, also those of other versions."""
_MAX_LABEL_SETTINGS = 4
_MIN_SEEDS = 5
"""With fewer seeds a bootstrap underestimates the spread of results."""


@dataclass(frozen=True)
class Group:
    """Runs with the same settings except the seed and settings that do not change results."""

    label: str
    runs: tuple[RunFiles, ...]
    """One run per seed."""

    @property
    def env(self) -> str:
        """The environment of all its runs."""
        return self.runs[0].env


def group_runs(paths: Sequence[str | Path]) -> tuple[list[Group], list[str]]:
    """Return the groups of the runs at these paths, in this order, and notes on runs that are incomplete or left out.

    Runs with the same settings except the seed form a group. If two or more of the paths contain several runs each,
    groups do not span paths: these may hold the same settings before and after a change to the program.
    """
    parents = [path for path in dict.fromkeys(map(Path, paths)) if len(run_directories(path)) > 1]
    separated = parents if len(parents) > 1 else []
    runs_by_key: dict[tuple[str, ...], list[RunFiles]] = {}
    for run in find_runs(paths):
        parent = next((str(path) for path in separated if path.resolve() in run.path.resolve().parents), "")
        runs_by_key.setdefault((run.env, run.algorithm, _settings(run), parent), []).append(run)
    labels = _labels(runs_by_key)
    notes: list[str] = []
    groups = [
        Group(labels[key], tuple(_newest_per_seed(runs, labels[key], notes))) for key, runs in runs_by_key.items()
    ]
    for group in groups:
        for run in group.runs:
            if run.status != "finished":
                notes.append(f"{group.label}, seed {run.seed}: {run.status}, after {run.steps:,} {run.progress.noun}.")
    return groups, notes


def by_env(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """Return the groups of each environment."""
    groups_by_env: dict[str, list[Group]] = {}
    for group in groups:
        groups_by_env.setdefault(group.env, []).append(group)
    return groups_by_env


def _settings(run: RunFiles) -> str:
    """Return the settings that change results, except the seed, as JSON."""
    settings = {
        name: value
        for name, value in run.config.items()
        if value is not None
        and name not in ("env", "seed", *_IGNORED_SETTINGS)
        and not name.startswith(_IGNORED_PREFIXES)
    }
    return json.dumps(settings, sort_keys=True)


def _newest_per_seed(runs: Iterable[RunFiles], label: str, notes: list[str]) -> list[RunFiles]:
    """Return the newest run of each seed: repeating a seed gives no independent sample."""
    newest: dict[int, RunFiles] = {}
    for run in sorted(runs, key=lambda run: run.started):
        if run.seed in newest:
            notes.append(f"{label}, seed {run.seed}: it has several runs; only the newest is used, {run.path}.")
        newest[run.seed] = run
    return [newest[seed] for seed in sorted(newest)]


def _labels(group_keys: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return a label for every group, unique within its environment: its algorithm and the settings that differ."""
    keys = list(group_keys)
    short = {key: (key[0], _label(key, keys, _MAX_LABEL_SETTINGS)) for key in keys}
    counts = Counter(short.values())
    labels: dict[tuple[str, ...], str] = {}
    for key in keys:
        name = short[key][1] if counts[short[key]] == 1 else _label(key, keys, None)
        taken = {label for other, label in labels.items() if other[0] == key[0]}
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        labels[key] = next(label for label in itertools.chain([name], numbered) if label not in taken)
    return labels


def _label(key: tuple[str, ...], keys: Sequence[tuple[str, ...]], max_settings: int | None) -> str:
    """Return a label for a group: its algorithm, and at most `max_settings` of the settings that differ."""
    env, algorithm, own_settings, parent = key
    candidates = [json.loads(other[2]) for other in keys if other[:2] == (env, algorithm)]
    settings = json.loads(own_settings)
    names = sorted(set().union(*candidates))
    differing = [name for name in names if len({str(candidate.get(name)) for candidate in candidates}) > 1]
    differing = [name for name in differing if name in settings]  # those that are not set tell a group apart by absence
    parts = [f"{name}={_format_value(settings[name])}" for name in differing[:max_settings]]
    if len(differing) > len(parts):
        parts += [f"and {format_count(len(differing) - len(parts), 'other')}"]
    if parent and sum(other[:3] == key[:3] for other in keys) > 1:
        parts.append(f"in {parent}")
    return " ".join([algorithm, *parts])


def _format_value(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class GroupCurves:
    """The learning curves of a group."""

    label: str
    seeds: dict[int, tuple[np.ndarray, np.ndarray]]
    """(x, y) by seed."""


def metric_curves(group: Group, x: str, y: str) -> GroupCurves:
    """Return the metric `y` over `x`, for the seeds that have both."""
    curves = {}
    for run in group.runs:
        pairs = ((numeric_value(row, x), numeric_value(row, y)) for row in run.metrics)
        points = [pair for pair in pairs if None not in pair]
        if points:
            xs, ys = np.asarray(points, float).T
            curves[run.seed] = xs, ys
    return GroupCurves(group.label, curves)


def default_metric(groups: Iterable[Group]) -> str:
    """Return the metric that runs are judged by: the return in training or, if none of them has it, in evaluations."""
    runs = [run for group in groups for run in group.runs]
    if any(RETURN_METRIC in run.last for run in runs):
        return RETURN_METRIC
    return EVAL_METRIC if any(EVAL_METRIC in row for run in runs for row in run.metrics) else RETURN_METRIC


def matching_metrics(name: str, groups: Iterable[Group]) -> list[str]:
    """Return the metrics of runs that match a pattern, such as those of all policies; or the one of this name."""
    groups = list(groups)
    names = dict.fromkeys(key for group in groups for run in group.runs for row in run.metrics for key in row)
    matching = sorted(key for key in names if "*" in name and fnmatchcase(key, name))
    if not matching:
        check_metric(name, groups)
    return matching or [name]


def check_metric(name: str, groups: Iterable[Group]) -> None:
    """Refuse a metric that none of the runs has."""
    rows = (row for group in groups for run in group.runs for row in run.metrics)
    names = {key for row in rows for key in row if key not in ("returns", "counts")}
    if name not in names:
        if not names:
            raise ConfigError("none of these runs has any metrics yet. Wait for the first iteration to end.")
        hint = "Runs trained with --eval-every have it." if name.startswith("eval/") else ""
        full_names = sorted(full_name for full_name in names if full_name.endswith(f"/{name}"))
        raise (
            ConfigError(f"unknown metric {name!r}. Did you mean {full_names[0]!r}?")
            if full_names
            else unknown_name("metric", name, names, hint)
        )


@dataclass(frozen=True)
class GroupScores:
    """The final scores of a group, and statistics of them."""

    label: str
    scores: dict[int, float]
    """Final scores by seed."""

    @property
    def values(self) -> np.ndarray:
        """The scores as an array."""
        return np.array(list(self.scores.values()))

    @property
    def mean(self) -> float:
        """Mean of the scores."""
        return float(self.values.mean())

    @property
    def iqm(self) -> float:
        """Interquartile mean of the scores."""
        from raceway.runs.statistics import interquartile_mean

        return interquartile_mean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bootstrap confidence interval of the interquartile mean over the seeds; None for a single seed."""
        from raceway.runs.statistics import bootstrap_interval

        return bootstrap_interval(self.values, level=CONFIDENCE_LEVEL) if len(self.scores) > 1 else None


@dataclass(frozen=True)
class PairComparison:
    """The probability that a run of one group scores higher than a run of another."""

    first: GroupScores
    second: GroupScores

    @property
    def label(self) -> str:
        """The labels of both groups, as `X > Y`."""
        return f"{self.first.label} > {self.second.label}"

    @property
    def probability(self) -> float:
        """P(X > Y), a tie counted as half."""
        from raceway.runs.statistics import probability_of_improvement

        return probability_of_improvement(self.first.values, self.second.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Bootstrap confidence interval of the probability; None if a group has a single seed."""
        from raceway.runs.statistics import improvement_interval

        if min(len(self.first.scores), len(self.second.scores)) < 2:
            return None
        return improvement_interval(self.first.values, self.second.values, level=CONFIDENCE_LEVEL)


@dataclass(frozen=True)
class Comparison:
    """The groups of one environment, compared."""

    env: str
    groups: list[GroupScores]
    notes: list[str] = field(default_factory=list)

    def short_names(self, max_length: int) -> dict[str, str]:
        """Return a name for every label: the label itself, or a number like `[1]` if one of them is too long."""
        labels = [group.label for group in self.groups]
        if max(map(len, labels), default=0) <= max_length:
            return {label: label for label in labels}
        return {label: f"[{number}]" for number, label in enumerate(labels, 1)}

    @property
    def pairs(self) -> list[PairComparison]:
        """Every pair of groups, the one with the higher interquartile mean first."""
        ordered = sorted(self.groups, key=lambda group: -group.iqm)
        return [PairComparison(first, second) for first, second in itertools.combinations(ordered, 2)]


def compare_groups(groups: Iterable[Group], metric: str = RETURN_METRIC) -> list[Comparison]:
    """Compare the last value of a metric, and return one comparison per environment."""
    comparisons = []
    for env, env_groups in by_env(groups).items():
        scored_groups, notes = [], list[str]()
        for group in env_groups:
            values = {run.seed: final_value(run, metric) for run in group.runs}
            scores = {seed: value for seed, value in values.items() if value is not None}
            notes += [f"{group.label}, seed {seed}: left out, it has no {metric}." for seed in values.keys() - scores]
            if scores:
                scored_groups.append(GroupScores(group.label, scores))
        comparisons.append(Comparison(env, scored_groups, [*notes, *_few_seeds_notes(scored_groups)]))
    if not any(comparison.groups for comparison in comparisons):
        raise ConfigError(f"none of these runs has a value of {metric} yet. Wait for an episode to end.")
    return comparisons


def _few_seeds_notes(groups: Sequence[GroupScores]) -> list[str]:
    """Return notes on intervals that are missing or too narrow for lack of seeds."""
    single = [group.label for group in groups if len(group.scores) == 1]
    few = [group.label for group in groups if 1 < len(group.scores) < _MIN_SEEDS]
    problems = {
        "Only one seed, so there is no interval": single,
        f"Fewer than {_MIN_SEEDS} seeds, so the intervals are too narrow": few,
    }
    return [
        f"{problem}: {'all of them' if len(labels) == len(groups) > 2 else ', '.join(labels)}."
        for problem, labels in problems.items()
        if labels
    ]


def final_value(run: RunFiles, metric: str = RETURN_METRIC) -> float | None:
    """Return the last value of a metric in a run."""
    if metric == RETURN_METRIC:
        return run.mean_return
    return next((value for row in reversed(run.metrics) if (value := numeric_value(row, metric)) is not None), None)
