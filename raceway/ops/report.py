"""Figures: what a training step says of itself, and what a run says of all of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WINDOW = 100  # episodes that a mean return is of


@dataclass
class TrainStats:
    """What came of one step of training."""

    num_steps: int
    """Steps of environments that it used."""
    returns: np.ndarray
    """Undiscounted returns of the episodes that ended."""
    lengths: np.ndarray
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each phase took."""
    priorities: tuple[np.ndarray, np.ndarray] | None = None
    """Of a batch from prioritised replay: the `index` of its rows, and their new priorities."""


class ReportMetrics:
    """Adds up what training steps say, under the names that people's plots already read (Stable-Baselines3's)."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.iterations = self.timesteps = self.episodes = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.best: float | None = None
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Count the time from now on."""
        self._begin = self._last = self._clock()

    def __call__(self, stats: TrainStats) -> dict[str, Any]:
        """Return one line of metrics."""
        now = self._clock()
        spent, self._last = now - self._last, now
        self.iterations += 1
        self.timesteps += stats.num_steps
        self.episodes += len(stats.returns)
        self.returns.extend(stats.returns.tolist())
        self.lengths.extend(stats.lengths.tolist())
        mean = self.mean_return
        if mean is not None and self.full:
            self.best = mean if self.best is None else max(self.best, mean)
        seconds = {"rollouts": max(spent - sum(stats.seconds.values()), 0.0), **stats.seconds}
        elapsed = now - self._begin
        return {
            "time/iterations": self.iterations,
            "time/total_timesteps": self.timesteps,
            "time/episodes": self.episodes,
            "time/time_elapsed": elapsed,
            "time/fps": self.timesteps / elapsed,
            "rollout/ep_rew_mean": mean,
            "rollout/ep_len_mean": float(np.mean(self.lengths)) if self.lengths else None,
            "rollout/iteration_rew_mean": float(np.mean(stats.returns)) if len(stats.returns) else None,
            **stats.metrics,
            **{f"time/{phase}_seconds": value for phase, value in seconds.items()},
            "returns": [round(value, 6) for value in stats.returns.tolist()],
        }

    @property
    def full(self) -> bool:
        """Whether a hundred episodes have ended."""
        return len(self.returns) == WINDOW

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last hundred episodes."""
        return float(np.mean(self.returns)) if self.returns else None
