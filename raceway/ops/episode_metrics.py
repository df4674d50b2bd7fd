"""Metrics of episodes beside their returns: success rate, entries of infos, and what callbacks return."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np

from raceway.errors import CallbackError
from raceway.rl.episode_info import decode_episodes
from raceway.rollouts.episode_reports import info_label
from raceway.state import Stateful

_log = logging.getLogger(__name__)


class EpisodeMetrics(Stateful):
    """Turns the column `episode_info` into metrics; see `raceway.rollouts.episode_reports` for what is in it.

    Args:
        window: number of latest episodes that the success rate is a mean over.
        token: identifies this part of the run; see `EpisodeCallbacks`.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("successes", "seen_labels")

    def __init__(self, window: int, token: str = "") -> None:
        self.successes: deque[float | None] = deque(maxlen=window)
        """Success of the latest episodes, None if unknown, from the first episode on for which it was known."""
        self.seen_labels: set[str] = set()
        """Labels of the entries of infos that an episode had, and of values that were no numbers."""
        self.token = token
        self._error: CallbackError | None = None

    @property
    def success_rate(self) -> float | None:
        """The mean of `is_success` over the latest episodes that had it; None if none had."""
        reported = [success for success in self.successes if success is not None]
        return float(np.mean(reported)) if reported else None

    def missing(self, info_keys: Iterable[str]) -> list[str]:
        """Return those of these keys that no info of an episode's last step had."""
        return [key for key in info_keys if info_label(key) not in self.seen_labels]

    def add(self, num_episodes: int, column: np.ndarray | None) -> dict[str, Any]:
        """Add the episodes of an iteration, and return their metrics.

        `counts` has the number of episodes of each mean, so that means of several iterations can be merged.
        """
        episodes: Sequence[dict[str, Any]] = () if column is None else decode_episodes(column)
        successes = [episode.get("success") for episode in episodes] if episodes else [None] * num_episodes
        if self.successes or any(success is not None for success in successes):
            self.successes.extend(successes)
        metrics: dict[str, Any] = {}
        rate = self.success_rate if self.successes else None
        if rate is not None:
            metrics["rollout/success_rate"] = rate
        return metrics | self._value_metrics(episodes) if episodes else metrics

    def _value_metrics(self, episodes: Sequence[dict[str, Any]]) -> dict[str, Any]:
        metrics, counts = dict[str, Any](), dict[str, int]()
        for key, values in _by_name(episodes, "env").items():
            self.seen_labels.add(info_label(key))
            metrics |= {f"env/{key}_min": min(values), f"env/{key}_max": max(values)}
            metrics[f"env/{key}_mean"], counts[f"env/{key}_mean"] = float(np.mean(values)), len(values)
        for name, values in _by_name(episodes, "metrics").items():
            metrics[f"episode/{name}"], counts[f"episode/{name}"] = float(np.mean(values)), len(values)
        for label, (description, *_) in _by_name(episodes, "invalid").items():
            if label not in self.seen_labels:
                _log.warning("%s is %s, not a finite number: it is left out of the metrics", label, description)
            self.seen_labels.add(label)
        errors = [episode["error"] for episode in episodes if "error" in episode]
        for error in errors if self._error is None else ():
            if error["token"] == self.token:
                text = f"{error['problem']}\n\n{error['traceback']}"
                self._error = CallbackError(text, error["callback"], "on_episode_end")
                break
        return metrics | {"counts": counts} if counts else metrics

    def raise_error(self) -> None:
        """Raise the error of a callback that failed on a worker, if one has."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _by_name(episodes: Sequence[dict[str, Any]], part: str) -> dict[str, list[Any]]:
    """Return the values of a part of the reports, by their names."""
    values: dict[str, list[Any]] = {}
    for episode in episodes:
        for name, value in episode.get(part, {}).items():
            values.setdefault(name, []).append(value)
    return values
