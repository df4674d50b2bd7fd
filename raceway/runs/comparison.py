"""Runs side by side: which belong together, what they are called, and what they say together."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from raceway.checks import unknown_name
from raceway.errors import ConfigError
from raceway.formatting import format_count
from raceway.runs.reader import RunFiles, find_runs, folders_of, number

RETURN, EVAL = "rollout/ep_rew_mean", "eval/mean_reward"
LEVEL = 0.95
_NO_EFFECT = (
    "engine", "address", "num_workers", "run_dir", "keep", "item_deadline", "max_env_failures", "max_restarts",
)  # fmt: skip
_NO_EFFECT_PREFIXES = ("eval_", "save_", "checkpoint", "log_")
_MOST_NAMED = 4  # settings in a legend
_FEW = 5  # seeds; with fewer a bootstrap cannot see how far results spread


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed, and in nothing else that changes results."""

    label: str
    runs: tuple[RunFiles, ...]
    """One of each seed."""

    @property
    def env(self) -> str:
        """Their environment."""
        return self.runs[0].env


def group_runs(paths: Sequence[str | Path]) -> tuple[list[Group], list[str]]:
    """Return the groups of some runs, in the order given, and what a reader should know of how they were made.

    Runs with the same settings but for the seed are a group. If two or more of the paths are folders with several runs
    in them, each of these is kept apart: they may be of one setting, before and after a change to the program.
    """
    many = [path for path in dict.fromkeys(map(Path, paths)) if len(folders_of(path)) > 1]
    apart = many if len(many) > 1 else []
    found: dict[tuple[str, ...], list[RunFiles]] = {}
    for run in find_runs(paths):
        home = next((str(path) for path in apart if path.resolve() in run.path.resolve().parents), "")
        found.setdefault((run.env, run.algorithm, _settings(run), home), []).append(run)
    labels = _labels(found)
    notes: list[str] = []
    groups = [Group(labels[key], tuple(_one_a_seed(runs, labels[key], notes))) for key, runs in found.items()]
    for one in groups:
        for run in one.runs:
            if run.status != "finished":
                notes.append(f"{one.label}, seed {run.seed}: {run.status}, after {run.timesteps:,} steps.")
    return groups, notes


def by_env(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """Return the groups of each environment."""
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.env, []).append(group)
    return found


def _settings(run: RunFiles) -> str:
    """Return the settings that results depend on, but for the seed, as text."""
    kept = {
        name: value
        for name, value in run.config.items()
        if value is not None and name not in ("env", "seed", *_NO_EFFECT) and not name.startswith(_NO_EFFECT_PREFIXES)
    }
    return json.dumps(kept, sort_keys=True)


def _one_a_seed(runs: Iterable[RunFiles], label: str, notes: list[str]) -> list[RunFiles]:
    """Return the newest run of each seed: the same run twice is not two samples."""
    newest: dict[int, RunFiles] = {}
    for run in sorted(runs, key=lambda run: run.started):
        if run.seed in newest:
            notes.append(f"{label}, seed {run.seed}: there are several runs of it; the newest counts, {run.path}.")
        newest[run.seed] = run
    return [newest[seed] for seed in sorted(newest)]


def _labels(found: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """Return a name for every group: its algorithm, and what sets it apart from the others of that algorithm."""
    keys = list(found)
    short = {key: (key[0], _label(key, keys, _MOST_NAMED)) for key in keys}  # a label is of one in its environment
    alike = Counter(short.values())
    labels: dict[tuple[str, ...], str] = {}
    for key in keys:
        name = short[key][1] if alike[short[key]] == 1 else _label(key, keys, None)
        taken = {label for other, label in labels.items() if other[0] == key[0]}
        numbered = (f"{name} ({number})" for number in itertools.count(2))
        labels[key] = next(one for one in itertools.chain([name], numbered) if one not in taken)
    return labels


def _label(key: tuple[str, ...], keys: Sequence[tuple[str, ...]], most: int | None) -> str:
    """Return a name for a group by its algorithm, and so many at most of the settings that differ."""
    env, algorithm, mine, home = key
    others = [json.loads(one[2]) for one in keys if one[:2] == (env, algorithm)]
    settings = json.loads(mine)
    differ = [name for name in sorted(set().union(*others)) if len({str(one.get(name)) for one in others}) > 1]
    parts = [f"{name}={_shown(settings.get(name))}" for name in differ[:most]]
    parts += [f"and {format_count(len(differ) - len(parts), 'other')}"] if len(differ) > len(parts) else []
    if home and sum(one[:3] == key[:3] for one in keys) > 1:
        parts.append(f"in {home}")
    return " ".join([algorithm, *parts])


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@dataclass(frozen=True)
class Curves:
    """What is drawn of a group."""

    label: str
    seeds: dict[int, tuple[np.ndarray, np.ndarray]]
    """(x, y) of every seed."""


def curves_of(group: Group, x: str, y: str) -> Curves:
    """Return how a metric went, of those seeds that have it."""
    found = {}
    for run in group.runs:
        pairs = ((number(row, x), number(row, y)) for row in run.metrics)
        points = [pair for pair in pairs if None not in pair]
        if points:
            xs, ys = np.asarray(points, float).T
            found[run.seed] = xs, ys
    return Curves(group.label, found)


def check_metric(name: str, groups: Iterable[Group]) -> None:
    """Refuse a metric that none of the runs has."""
    rows = (row for group in groups for run in group.runs for row in run.metrics)
    names = {key for row in rows for key in row if key != "returns"}
    if name not in names:
        if not names:
            raise ConfigError("none of these runs has any metrics yet. Wait for the first iteration to end.")
        hint = "Runs that were trained with --eval-every have it." if name.startswith("eval/") else ""
        whole = sorted(one for one in names if one.endswith(f"/{name}"))
        raise (
            ConfigError(f"unknown metric {name!r}. Did you mean {whole[0]!r}?")
            if whole
            else unknown_name("metric", name, names, hint)
        )


@dataclass(frozen=True)
class Standing:
    """The final scores of a group, and what they say."""

    label: str
    scores: dict[int, float]
    """By seed."""

    @property
    def values(self) -> np.ndarray:
        """The scores."""
        return np.array(list(self.scores.values()))

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(self.values.mean())

    @property
    def iqm(self) -> float:
        """Their interquartile mean."""
        from raceway.rl import interquartile_mean

        return interquartile_mean(self.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where the interquartile mean lies, by a bootstrap over the seeds; of one seed nothing can be said."""
        from raceway.rl import bootstrap_interval

        return bootstrap_interval(self.values, level=LEVEL) if len(self.scores) > 1 else None


@dataclass(frozen=True)
class Pair:
    """How likely a run of one group is higher than a run of another."""

    first: Standing
    second: Standing

    @property
    def label(self) -> str:
        """What is compared."""
        return f"{self.first.label} > {self.second.label}"

    @property
    def probability(self) -> float:
        """P(X > Y), a tie counted as half."""
        from raceway.rl import probability_of_improvement

        return probability_of_improvement(self.first.values, self.second.values)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where it lies, by a bootstrap over the seeds of both."""
        from raceway.rl import improvement_interval

        if min(len(self.first.scores), len(self.second.scores)) < 2:
            return None
        return improvement_interval(self.first.values, self.second.values, level=LEVEL)


@dataclass(frozen=True)
class Comparison:
    """Groups in one environment."""

    env: str
    standings: list[Standing]
    notes: list[str] = field(default_factory=list)

    @property
    def pairs(self) -> list[Pair]:
        """Every two of them, the one with the higher interquartile mean first."""
        ordered = sorted(self.standings, key=lambda one: -one.iqm)
        return [Pair(first, second) for first, second in itertools.combinations(ordered, 2)]


def compare_groups(groups: Iterable[Group], metric: str = RETURN) -> list[Comparison]:
    """Return one comparison for each environment, of the last value of a metric in every run."""
    found = []
    for env, those in by_env(groups).items():
        standings, notes = [], list[str]()
        for group in those:
            last = {run.seed: final(run, metric) for run in group.runs}
            scores = {seed: score for seed, score in last.items() if score is not None}
            notes += [f"{group.label}, seed {seed}: left out, it has no {metric}." for seed in last.keys() - scores]
            if scores:
                standings.append(Standing(group.label, scores))
        found.append(Comparison(env, standings, [*notes, *_cautions(standings)]))
    if not any(one.standings for one in found):
        raise ConfigError(f"none of these runs has a value of {metric} yet. Wait for an episode to end.")
    return found


def _cautions(standings: Iterable[Standing]) -> list[str]:
    """Return what intervals cannot be given, and which should not be trusted too far."""
    single = [one.label for one in standings if len(one.scores) == 1]
    few = [one.label for one in standings if 1 < len(one.scores) < _FEW]
    notes = [f"One seed only, so that no interval can be given: {', '.join(single)}."] if single else []
    notes += [f"Fewer than {_FEW} seeds, so that intervals come out too narrow: {', '.join(few)}."] if few else []
    return notes


def final(run: RunFiles, metric: str = RETURN) -> float | None:
    """Return the last value of a metric in a run."""
    if metric == RETURN:
        return run.mean_return
    return next((value for row in reversed(run.metrics) if (value := number(row, metric)) is not None), None)
