"""Merging the metrics of fast iterations into a few rows a second, with exact counts, sums and means.

A fast algorithm has hundreds of iterations a second, and a row for each would grow a run by megabytes a minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

ROW_ITERATIONS, ROW_EPISODES, COUNTS = "time/row_iterations", "rollout/row_episodes", "counts"
MAX_RETURNS = 1000
"""Returns kept in a row, the latest ones. The number of episodes and their mean return are exact in any case."""
_REWARD_MEAN = "rollout/iteration_rew_mean"
_LATEST = frozenset((
    "time/iterations", "time/total_timesteps", "time/episodes", "time/time_elapsed", "time/fps", "rollout/ep_rew_mean",
    "rollout/ep_len_mean", "rollout/success_rate", "rollout/env_failures", "rollout/worker_restarts",
    "time/total_updates", "time/updates_per_second", "dataset/epoch", "dataset/worker_restarts",
))  # fmt: skip
"""Metrics that describe the run so far: the latest value stands for all before it."""


class RowMerger:
    """Merges the metrics of iterations that end less than `interval` seconds after the last row.

    A merged row has the latest value of what describes the run so far, the sum of the seconds, the mean over the
    iterations of all other numbers, and the mean over the episodes of their returns. Means that come with a number of
    values in `counts` are means over these values, and `env/*_min` and `env/*_max` are extremes. Of a metric that is no
    number, it has the latest value.

    Args:
        interval: minimum seconds between two rows; 0 gives a row per iteration.
        clock: returns the current time in seconds.
    """

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval, self._clock = interval, clock
        self._last_row_time = float("-inf")
        self._pending: _MergedRow | None = None

    def add(self, metrics: Mapping[str, Any]) -> dict[str, Any] | None:
        """Add the metrics of an iteration. Return the row if it is due: time has passed, or it has an evaluation."""
        if self._pending is None:
            self._pending = _MergedRow()
        self._pending.add(metrics)
        is_due = self._clock() - self._last_row_time >= self.interval or "eval/mean_reward" in metrics
        return self.take() if is_due else None

    def take(self) -> dict[str, Any] | None:
        """Return the row of the iterations since the last one, or None if there are none."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        self._last_row_time = self._clock()
        return pending.row()


class _MergedRow:
    """Sums over the iterations of one row."""

    def __init__(self) -> None:
        self.iterations = self.episodes = 0
        self.has_returns = False
        """Whether iterations have episodes at all; they have none if the run learns from a dataset."""
        self.return_sum = 0.0
        self.returns: deque[float] = deque(maxlen=MAX_RETURNS)
        self.values: dict[str, Any] = {}
        """The latest value of every metric, or its sum if it is in `counts`."""
        self.counts: dict[str, int] = {}
        """Number of iterations that had a metric which is summed."""
        self.num_values: dict[str, int] = {}
        """Number of values of a mean that is weighted by it."""

    def add(self, metrics: Mapping[str, Any]) -> None:
        returns = metrics.get("returns", ())
        self.has_returns |= "returns" in metrics
        self.iterations += 1
        self.episodes += len(returns)
        self.returns.extend(returns)
        if returns:
            self.return_sum += metrics[_REWARD_MEAN] * len(returns)
        values, counts, num_values = self.values, self.counts, metrics.get(COUNTS, {})
        for name, value in metrics.items():
            if name in _LATEST or name == "returns" or name.startswith("eval/") or _is_latest_of_policy(name):
                values[name] = value
                continue
            if name == COUNTS:
                continue
            if name in num_values:
                self._add_mean(name, value, num_values[name])
                continue
            if (extreme := _extreme(name)) is not None:
                values[name] = extreme(values.get(name, value), value)
                continue
            number = _number(value)
            if number is None:
                if value is not None or name not in counts:
                    values[name] = value
                    counts.pop(name, None)
            elif name in counts:
                values[name] += number
                counts[name] += 1
            else:
                values[name], counts[name] = number, 1

    def _add_mean(self, name: str, mean: float, num_values: int) -> None:
        total = self.num_values[name] = self.num_values.get(name, 0) + num_values
        before = self.values.get(name)
        self.values[name] = mean if before is None else before + (mean - before) * (num_values / total)

    def row(self) -> dict[str, Any]:
        """Return the row, with the counts of metrics that some of its iterations lack, or that are weighted."""
        row = dict(self.values)
        if self.episodes:
            row[_REWARD_MEAN] = self.return_sum / self.episodes
        self.counts.pop(_REWARD_MEAN, None)
        averaged = {name: count for name, count in self.counts.items() if not is_sum(name)}
        row |= {name: row[name] / count for name, count in averaged.items() if count > 1}
        row[ROW_ITERATIONS] = self.iterations
        if self.has_returns:
            row |= {ROW_EPISODES: self.episodes, "returns": list(self.returns)}
        partial = {name: count for name, count in averaged.items() if count != self.iterations} | self.num_values
        return row | {COUNTS: partial} if partial else row


def _is_latest_of_policy(name: str) -> bool:
    """Whether a metric of one of several policies describes the run so far.

    >>> _is_latest_of_policy("rollout/pair/ep_rew_mean"), _is_latest_of_policy("train/pair/loss")
    (True, False)
    """
    group, _, rest = name.partition("/")
    policy, slash, metric = rest.partition("/")
    return bool(policy and slash) and f"{group}/{metric}" in _LATEST


def _extreme(name: str) -> Callable[..., Any] | None:
    """Return the function that merges a metric which is an extreme over episodes; None if it is none.

    >>> _extreme("env/speed_max"), _extreme("env/speed_mean")
    (<built-in function max>, None)
    """
    if not name.startswith("env/"):
        return None
    return min if name.endswith("_min") else max if name.endswith("_max") else None


def _number(value: Any) -> float | None:
    """Return a metric that is one number as a number of Python, whose sums neither overflow nor lose digits.

    >>> _number(3), _number(True), _number("3"), _number([3])
    (3, 1.0, None, None)
    """
    if type(value) is float or type(value) is int:
        return value
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # of numpy or torch
        value = value.item()
    return float(value) if isinstance(value, Real) else None


def is_sum(name: str) -> bool:
    """Whether a metric of a row is the sum over its iterations: the seconds of a phase."""
    return name.startswith("time/") and name.endswith("_seconds")
