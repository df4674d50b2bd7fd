"""A dataset: whole episodes of one observation space and one action space, read by row or by episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from raceway.checks import check_fraction
from raceway.errors import ConfigError
from raceway.rl import Batch, discounted_returns, episode_sums, row_of, tree_map
from raceway.rl.space_json import without_bounds

Array = np.ndarray

STEP_COLUMNS = ("obs", "action", "reward", "terminated", "truncated")
"""Columns with one entry for each step."""


@dataclass(frozen=True, eq=False)
class Part:
    """Some consecutive episodes of a dataset, which are read on demand."""

    num_episodes: int
    num_steps: int
    read: Callable[[], Batch]
    """Returns the batch of the episodes, as `check_episodes` describes it."""


class Dataset:
    """Recorded episodes. Only the parts that are used are read, each of them once.

    Args:
        name: where it comes from: a path or an id.
        observation_space: the space of `obs`, and of `next_obs`.
        action_space: the space of `action`.
        parts: its episodes, in order; at least one.
        about: what recorded it, as plain data: `env`, `algorithm`, `checkpoint` and others, as far as they are known.
        sha256: a hash of its contents.
    """

    def __init__(
        self,
        name: str,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        parts: Sequence[Part],
        about: Mapping[str, Any],
        sha256: str,
    ) -> None:
        self.name, self.about, self.sha256 = name, dict(about), sha256
        self.observation_space, self.action_space = observation_space, action_space
        self.parts = list(parts)
        """Its episodes, in order."""
        self._ends = np.cumsum([part.num_steps for part in parts])  # the row after the last of each part
        self._batches: dict[int, Batch] = {}
        self._returns: dict[tuple[int, float], Array] = {}

    def __repr__(self) -> str:
        return f"<dataset {self.name}: {self.num_episodes:,} episodes, {self.num_steps:,} steps>"

    @property
    def num_steps(self) -> int:
        """The number of steps: of rows."""
        return int(self._ends[-1])

    @property
    def num_episodes(self) -> int:
        """The number of episodes."""
        return sum(part.num_episodes for part in self.parts)

    def lengths(self) -> Array:
        """Return the number of steps of each episode, [E]."""
        return np.concatenate([batch["length"] for batch in self.batches()])

    def returns(self) -> Array:
        """Return the undiscounted return of each episode, [E]."""
        return np.concatenate([episode_sums(batch["reward"], batch["length"]) for batch in self.batches()])

    def batches(self) -> Iterator[Batch]:
        """Yield all episodes, part by part: the columns of `rows`, and `length` and `final_obs` of each episode."""
        return map(self._read, range(len(self.parts)))

    def rows(
        self, index: Array, *, next_obs: bool = False, gamma: float | None = None, final_obs: bool = False
    ) -> Batch:
        """Return the rows with these numbers, [N]: `obs`, `action`, `reward`, `terminated` and `truncated`.

        Args:
            index: numbers of rows, in any order.
            next_obs: whether to add `next_obs`, the observation after the step: after the last one of an episode, that
                episode's own final observation.
            gamma: the discount γ of a column `return` to add: the discounted sum of the rewards from the step to the
                end of its episode. After a truncation the rewards that would have followed are missing.
            final_obs: whether to add what stands for them, with `gamma`: `final_obs`, the last observation of the
                episode, and `final_discount`, γᵏ if k steps lead to it and truncation ended them, else 0.
        """
        if final_obs and gamma is None:
            raise ConfigError("the discount of the final observation is missing. Pass gamma.")
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and index.max() < self.num_steps):
            raise ConfigError(f"rows from {index.min()} to {index.max()} are not all in {self!r}")
        part_of_row = np.searchsorted(self._ends, index, side="right")
        numbers = np.unique(part_of_row).tolist() or [0]
        if len(numbers) == 1:
            return self._part_rows(numbers[0], index, next_obs, gamma, final_obs)
        batch: Batch = {}
        for number in numbers:
            places = np.flatnonzero(part_of_row == number)
            rows = self._part_rows(number, index[places], next_obs, gamma, final_obs)
            if not batch:
                batch = tree_map(lambda column: np.empty((len(index), *column.shape[1:]), column.dtype), rows)
            tree_map(lambda column, values, places=places: column.__setitem__(places, values), batch, rows)
        return batch

    def _part_rows(self, number: int, index: Array, next_obs: bool, gamma: float | None, final_obs: bool) -> Batch:
        part, steps = self._read(number), index - (self._ends[number] - self.parts[number].num_steps)
        rows: Batch = {name: row_of(part[name], steps) for name in STEP_COLUMNS}
        if next_obs:
            last = rows["terminated"] | rows["truncated"]
            episodes = np.searchsorted(np.cumsum(part["length"]), steps[last], side="right")
            following = np.where(last, steps, steps + 1)
            rows["next_obs"] = row_of(part["obs"], following)
            tree_map(
                lambda column, final: column.__setitem__(last, final[episodes]), rows["next_obs"], part["final_obs"]
            )
        if gamma is not None:
            key = number, check_fraction("gamma", gamma)
            if key not in self._returns:
                self._returns[key] = discounted_returns(part["reward"], part["length"], gamma)
            rows["return"] = self._returns[key][steps]
            if final_obs:
                rows |= _final_columns(part, steps, gamma)
        return rows

    def _read(self, number: int) -> Batch:
        if number not in self._batches:
            self._batches[number] = self.parts[number].read()
        return self._batches[number]


def _final_columns(part: Batch, steps: Array, gamma: float) -> Batch:
    """Return the last observation of the episode of every step, and its discount."""
    ends = np.cumsum(part["length"])
    episodes = np.searchsorted(ends, steps, side="right")
    after = ends[episodes]  # the row after the last of the episode
    discount = np.where(part["terminated"][after - 1], 0.0, gamma ** (after - steps)).astype(np.float32)
    return {"final_obs": row_of(part["final_obs"], episodes), "final_discount": discount}


def check_spaces(dataset: Dataset, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """Check that a dataset has the spaces of an environment. Bounds may differ."""
    pairs = {
        "observations": (dataset.observation_space, observation_space),
        "actions": (dataset.action_space, action_space),
    }
    for name, (own, other) in pairs.items():
        if without_bounds(own) != without_bounds(other):
            raise ConfigError(
                f"the environment has {name} of {other}; those of the dataset {dataset.name} are of {own}. Use the "
                f"environment that recorded it, {dataset.about.get('env') or 'which is unknown'}."
            )
