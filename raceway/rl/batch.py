"""A batch: a nested mapping of arrays, with one row for each step.

Observations of a Dict space keep their keys, so `batch["obs"]` is an array or a mapping of arrays.

The steps of a batch are arranged in one of five layouts (`Layout`), which a column tells apart (`layout_of`). `COLUMNS`
is the table of all columns: what they hold, their shape in each layout, who writes and who reads them. It is shown in
docs/batches.md, and a test compares it with the batches of every algorithm. Operators may add columns of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any, NewType

import numpy as np

from raceway.rl.episode_info import with_episode_info

Batch = dict[str, Any]
"""A batch of any layout."""
Fragment = NewType("Fragment", Batch)
"""A batch in the layout `Layout.FRAGMENT`. Like the others it is a plain dict; the types are for mypy and readers."""
Rows = NewType("Rows", Batch)
"""A batch in the layout `Layout.ROWS`."""
Episodes = NewType("Episodes", Batch)
"""A batch in the layout `Layout.EPISODES`."""
Trials = NewType("Trials", Batch)
"""A batch in the layout `Layout.TRIALS`."""


class Layout(StrEnum):
    """How the steps of a batch are arranged."""

    FRAGMENT = "fragment"
    """[T, B]: T steps of B slots. A slot is an environment, or an agent in one; its episodes may begin before the
    fragment and continue after it."""
    ROWS = "rows"
    """[N]: steps or transitions in any order; or, for a recurrent network, segments of episodes one after the other."""
    EPISODES = "episodes"
    """[N]: E whole episodes, one after the other."""
    SEQUENCES = "sequences"
    """[N, L]: N sequences of L steps, for replay."""
    TRIALS = "trials"
    """[P]: P directions in which weights were perturbed, each with the totals of two whole episodes and no steps."""


_ONLY_IN = {
    "length": Layout.EPISODES,
    "mask": Layout.SEQUENCES,
    "last_obs": Layout.FRAGMENT,
    "direction": Layout.TRIALS,
}


def layout_of(batch: Batch) -> Layout:
    """Return the layout of a batch, by the column that only it has.

    >>> layout_of({"reward": np.zeros(3), "length": np.array([2, 1])})
    <Layout.EPISODES: 'episodes'>
    """
    return next((layout for column, layout in _ONLY_IN.items() if column in batch), Layout.ROWS)


def has_segments(rows: Batch) -> bool:
    """Whether rows are segments of episodes, for a recurrent network; see `rl.segments`."""
    return "segment" in rows


def is_replayed(batch: Batch) -> bool:
    """Whether a batch was sampled from replay: its environment steps were counted when they were collected."""
    return "index" in batch


def is_repeated(batch: Batch) -> bool:
    """Whether a batch was trained on before: its environment steps were counted then.

    >>> is_repeated({"reward": np.zeros(2)}), is_repeated({"reward": np.zeros(2), "collected": np.zeros(1)})
    (False, True)
    """
    return COLLECTED in batch and not np.any(batch[COLLECTED])


@dataclass(frozen=True)
class Column:
    """A column of a batch."""

    name: str
    meaning: str
    written_by: str
    read_by: str
    shapes: Mapping[str, str]
    """Its shape in each layout that has it. Letters are sizes, `...` any further axes."""


SIZES = {
    "T": "steps of a fragment",
    "B": "slots",
    "G": "environments, of which each has a slot per agent",
    "N": "rows, or sequences",
    "L": "steps of a sequence",
    "E": "episodes of the batch",
    "S": "segments",
    "K": "truncated steps",
    "M": "terminated steps",
    "P": "directions of perturbed weights",
    "Q": "shards that collected them",
    "F": "episodes that ended",
    "C": "fragments that were concatenated",
    "D": "episodes that were dropped because an environment failed",
}
"""The sizes in shapes."""
_STEP = {"fragment": "[T, B]", "rows": "[N]", "episodes": "[N]", "sequences": "[N, L]"}
_STEP_VALUES = {layout: shape.replace("]", ", ...]") for layout, shape in _STEP.items()}
_FRAGMENT, _ROW, _ROWS_AND_EPISODES = {"fragment": "[T, B]"}, {"rows": "[N]"}, {"rows": "[N]", "episodes": "[N]"}
_SEQUENCE = {"sequences": "[N, L]"}
_ENDED = {"fragment": "[F]", "rows": "[F]", "episodes": "[F]", "sequences": "[F]", "trials": "[F]"}
_PERTURBED = "PerturbationWorker"
_COLLECTOR, _MULTI = "collectors", "multi-agent collectors"
_ENDS, _TURNS = "advantages, transitions", "turn-based collectors"

COLUMNS = (
    Column("obs", "observation before the step", f"{_COLLECTOR}, datasets", "networks", _STEP_VALUES),
    Column("action", "action, as the policy chose it", f"{_COLLECTOR}, datasets", "losses", _STEP_VALUES),
    Column("reward", "reward; of n steps in transitions", f"{_COLLECTOR}, datasets", f"{_ENDS}, losses", _STEP),
    Column("terminated", "whether the episode ended by itself", f"{_COLLECTOR}, datasets", _ENDS, _STEP),
    Column("truncated", "whether the episode was cut off", f"{_COLLECTOR}, datasets", _ENDS, _STEP),
    Column("valid", "whether there was a step; without it, all are valid", _COLLECTOR, "means, counts",
           {**_FRAGMENT, **_SEQUENCE}),
    Column("last_obs", "observation after the last step", _COLLECTOR, "advantages, transitions",
           {"fragment": "[B, ...]", "sequences": "[N, ...]"}),
    Column("final_obs", "last observation of truncated episodes; of all, if they are whole; in rows, of the step's",
           f"{_COLLECTOR}, datasets", f"{_ENDS}, losses",
           {"fragment": "[K, ...]", "rows": "[N, ...]", "episodes": "[E, ...]"}),
    Column("final_discount", "γᵏ of k steps to final_obs, or 0 if the episode terminated", "datasets", "losses", _ROW),
    Column("terminal_obs", "last observation of episodes that terminated, for hindsight", _COLLECTOR,
           "EpisodeTransitions", {"fragment": "[M, ...]"}),
    Column("state", "recurrent state before the first step", _COLLECTOR, "recurrent networks",
           {"fragment": "[B, ...]", "rows": "[S, ...]", "sequences": "[N, ...]"}),
    Column("segment", "number of rows of each segment", "AddAdvantages", "recurrent networks", {"rows": "[S]"}),
    Column("features", "what the head of the policy's network got, of images", _COLLECTOR, "AddAdvantages, AddLogProbs",
           {"fragment": "[T, B, ...]"}),
    Column("network_outputs", "outputs of the policy's network", _COLLECTOR, "AddAdvantages, AddLogProbs",
           {"fragment": "[T, B, ...]"}),
    Column("restarted", "slots that do not continue the last fragment", _COLLECTOR, "running returns, transitions",
           {"fragment": "[B]"}),
    Column("num_turns", "steps of each slot, after padding", _TURNS, "rl.turns", {"fragment": "[B]"}),
    Column("agent", "number of the slot's agent, of those with its policy", _MULTI, "losses", {"fragment": "[B]"}),
    Column("global_state", "state of the environment before the step", _MULTI, "losses", {"fragment": "[T, G, ...]"}),
    Column("last_global_state", "state after the last step", _MULTI, "losses", {"fragment": "[G, ...]"}),
    Column("final_global_state", "state at the end of truncated episodes", _MULTI, "losses", {"fragment": "[K, ...]"}),
    Column("length", "number of steps of each episode", f"{_COLLECTOR}, datasets", "returns, Learner",
           {"episodes": "[E]"}),
    Column("log_prob", "log-probability of the action when it was chosen", "AddAdvantages, AddLogProbs, FitBaseline",
           "losses", {**_FRAGMENT, **_ROWS_AND_EPISODES}),
    Column("ended", "terminated, or truncated and valid", "AddLogProbs", "V-trace, segments", _FRAGMENT),
    Column("bootstrap", "γ V(final_obs) where an episode was truncated, else 0", "AddLogProbs", "V-trace", _FRAGMENT),
    Column("running_return", "discounted return so far, if rewards are scaled", "AddAdvantages, AddLogProbs",
           "the reward normaliser", {**_FRAGMENT, **_ROW}),
    Column("advantage", "advantage of the action", "AddAdvantages, FitBaseline, losses", "losses", _ROWS_AND_EPISODES),
    Column("value_target", "target of V(s)", "AddAdvantages", "losses", _ROW),
    Column("q_target", "target of Q(s, a)", "AddQLambdaReturns", "losses", _ROW),
    Column("return", "discounted return from the step on", "AddReturns, datasets", "losses", _ROWS_AND_EPISODES),
    Column("next_obs", "observation after the (last) step", "Transitions, Sequences, datasets, next_obs_of", "losses",
           {"fragment": "[T, B, ...]", "rows": "[N, ...]", "sequences": "[N, L, ...]"}),
    Column("discount", "γⁿ, or 0 after termination", "Transitions, Sequences, AddDiscounts", "losses",
           {**_ROW, **_SEQUENCE}),
    Column("steps_before", "steps of the episode before this one", "EpisodeTransitions", "hindsight", _ROW),
    Column("steps_after", "steps of the episode after this one", "EpisodeTransitions", "hindsight", _ROW),
    Column("span", "number of rewards in the transition", "Sequences", "QAgent", _SEQUENCE),
    Column("begins", "whether the step is the first of its episode", "Sequences", "QAgent", _SEQUENCE),
    Column("new_log_prob", "log-probability of an action that is sampled now", "losses of SAC, CQL", "the same",
           _ROW),
    Column("mask", "whether the step is trained: it is valid, and no burn-in", "Sequences", "means", _SEQUENCE),
    Column("collected", "environment steps that were collected, of each fragment; 0 if they were counted before",
           "Sequences, EpisodeTransitions, CircularBatches", "counts",
           {"fragment": "[C]", "rows": "[C]", "sequences": "[C]"}),
    Column("version", "version of the weights that collected it, if it is given again", "CircularBatches", "policy lag",
           {"fragment": "[]"}),
    Column("index", "number of the row in replay", "Replay", "UpdatePriorities", {**_ROW, "sequences": "[N]"}),
    Column("weight", "importance-sampling weight", "prioritised Replay", "losses", {**_ROW, "sequences": "[N]"}),
    Column("num_batches", "batches that were sampled at once, for a gradient step each; else it is one", "ReplayShard",
           "Learner", {"rows": "[]", "sequences": "[]"}),
    Column("env_steps", "environment steps of the run so far", "AddProgress", "Learner",
           {"rows": "[]", "sequences": "[]"}),
    Column("direction", "number of the direction, whose noise follows from it", _PERTURBED, "EstimateGradient",
           {"trials": "[P]"}),
    Column("obs_moments", "number, means and variances of the observations, if they are normalised", _PERTURBED,
           "MergeObservations", {"trials": "[Q, ...]"}),
    Column("episode_return", "undiscounted return of each episode that ended", _COLLECTOR, "TrainStats", _ENDED),
    Column("episode_length", "its number of steps", _COLLECTOR, "TrainStats", _ENDED),
    Column("episode_info", "a line of JSON for each; see `rl.episode_info`", _COLLECTOR, "TrainStats",
           dict.fromkeys(_ENDED, "[...]")),
    Column("episode_lost", "steps of each episode that was dropped", _COLLECTOR, "TrainStats",
           dict.fromkeys(_ENDED, "[D]")),
)  # fmt: skip
"""The table of columns."""

COLLECTED = "collected"
"""Column of batches whose rows are not their steps: the number of environment steps, one number per fragment."""
VERSION = "version"
"""Column of batches that are given again: the number of updates of the weights that collected them."""


def columns_with(layout: Layout, sizes: str) -> frozenset[str]:
    """Return the names of the columns whose shape in a layout begins with these sizes.

    >>> sorted(columns_with(Layout.ROWS, "[S"))
    ['segment', 'state']
    """
    return frozenset(column.name for column in COLUMNS if column.shapes.get(layout, "").startswith(sizes))


def tree_map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Apply a function to every array of a tree, or to the arrays of several trees with the same keys.

    >>> tree_map(lambda x: x + 1, {"a": 1, "b": {"c": 2}})
    {'a': 2, 'b': {'c': 3}}
    """
    if type(tree) is not dict and not isinstance(tree, Mapping):  # the second test takes ten times as long
        return function(tree, *others)
    if others:
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    return {key: function(part) if type(part) is np.ndarray else tree_map(function, part) for key, part in tree.items()}


def concat(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches, column by column.

    >>> concat([{"reward": np.array([1.0])}, {"reward": np.array([2.0, 3.0])}])
    {'reward': array([1., 2., 3.])}
    """
    if len(batches) == 1:
        return batches[0]
    batches = with_episode_info(batches)
    for other in batches[1:]:
        if other.keys() != batches[0].keys():
            raise ValueError(f"cannot concatenate batches with different columns: {list(batches[0])} and {list(other)}")
    return tree_map(lambda *columns: np.concatenate(columns), *batches)


def num_steps(batch: Batch) -> int:
    """Return the number of environment steps in a batch.

    >>> num_steps({"reward": np.zeros((5, 2))})
    10
    """
    if COLLECTED in batch:
        return int(batch[COLLECTED].sum())
    if layout_of(batch) is Layout.TRIALS:
        return int(batch["episode_length"].sum())
    if "valid" in batch:
        return int(batch["valid"].sum())
    return int(np.size(batch["reward"])) if "reward" in batch else len(batch["action"])


def split_episodes(batch: Batch, min_steps: int) -> list[Batch]:
    """Split a batch of concatenated episodes into batches of at least `min_steps` steps; the last may have fewer.

    >>> batch = {"reward": np.arange(6), "length": np.array([2, 1, 3])}
    >>> [part["reward"].tolist() for part in split_episodes(batch, 3)]
    [[0, 1, 2], [3, 4, 5]]
    """
    lengths = batch["length"]
    ends = np.cumsum(lengths)
    edges, begin = [0], 0  # episode indices at which parts begin and end
    for index, end in enumerate(ends.tolist(), 1):
        if end - begin >= min_steps:
            edges.append(index)
            begin = end
    if edges[-1] != len(lengths):
        edges.append(len(lengths))
    steps = [0, *ends.tolist()]
    total = steps[-1]
    cuts = [(slice(steps[a], steps[b]), slice(a, b)) for a, b in pairwise(edges)]
    return [
        {
            name: tree_map(lambda rows, cut=cut: rows[cut[0] if len(rows) == total else cut[1]], column)
            for name, column in batch.items()
        }
        for cut in cuts
    ]


def masked_mean(values: Any, batch: Batch) -> Any:
    """Return the mean over a batch, or over the rows of its `mask` if it has one, of an array or tensor.

    >>> float(masked_mean(np.array([1.0, 3.0, 8.0]), {"mask": np.array([True, True, False])}))
    2.0
    """
    if "mask" not in batch:
        return values.mean()
    mask = batch["mask"]
    return (values * mask).sum() / mask.sum().clip(1)


def without_episode_columns(batch: Batch) -> Batch:
    """Return a batch without columns of other things: `episode_*`, of finished episodes, `collected` and `version`.

    >>> list(without_episode_columns({"reward": np.zeros(2), "episode_return": np.zeros(1)}))
    ['reward']
    """
    other = (COLLECTED, VERSION)
    return {name: column for name, column in batch.items() if not name.startswith("episode_") and name not in other}


def num_rows(batch: Batch) -> int:
    """Return the number of rows of a batch, by its first column.

    >>> num_rows({"obs": {"left": np.zeros((3, 2))}})
    3
    """
    column: Any = batch
    while isinstance(column, Mapping):
        column = next(iter(column.values()), ())
    return len(column)
