"""Metrics: the stats of a training step, and the rows that a run reports."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from raceway.flow import Envelope, injected
from raceway.learner.learner import Learner
from raceway.ops.episode_metrics import EpisodeMetrics
from raceway.rl import Batch, Layout, episode_sums, is_replayed, layout_of, num_rows, num_steps, without_episode_columns
from raceway.rl.batch import COLLECTED
from raceway.rl.episode_info import EPISODE_INFO, concat_episodes
from raceway.state import Stateful, record

_NO_EPISODES = np.empty(0)
WINDOW = 100
"""Number of latest episodes whose mean return is reported."""


@record(wall_clock=("seconds",), formerly=("TrainStats",), renamed={"news": "published_weights"})
@dataclass
class TrainStats:
    """Stats of one training step."""

    num_steps: int
    """Environment steps that it used."""
    returns: np.ndarray
    """Undiscounted returns of the episodes that ended."""
    lengths: np.ndarray
    """Steps of the episodes that ended."""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each phase took."""
    env_failures: int = 0
    """Environment failures that were tolerated."""
    priorities: tuple[np.ndarray, np.ndarray] | None = None
    """For a batch from prioritised replay: the `index` of its rows, and their new priorities."""
    published_weights: Any = None
    """The version and weights after the step, if the learner is remote; see `Learner`."""
    episode_info: np.ndarray | None = None
    """What was reported of the episodes that ended, if anything; see `raceway.rl.episode_info`."""
    num_updates: int = 0
    """Updates of the learner."""
    num_stored: int | None = None
    """For a batch whose rows are not the steps that were collected: the steps that it stored in replay to train on."""

    @classmethod
    def of(
        cls,
        batch: Batch,
        metrics: Mapping[str, Any] | None = None,
        priorities: np.ndarray | None = None,
        **seconds: float,
    ) -> TrainStats:
        """Return the stats of a batch that was collected, or sampled from replay, and of training on it.

        Args:
            batch: the batch.
            metrics: the metrics of training on it.
            priorities: the new priorities of its rows, if it was sampled from replay.
            seconds: how long each phase took.
        """
        returns, lengths = batch.get("episode_return", _NO_EPISODES), batch.get("episode_length", _NO_EPISODES)
        if layout_of(batch) is Layout.EPISODES and returns is _NO_EPISODES:  # of whole games, if there are scores
            returns, lengths = episode_sums(batch["reward"], batch["length"]), batch["length"]
        replayed = is_replayed(batch)
        return cls(
            num_steps=0 if replayed else num_steps(batch),
            returns=returns,
            lengths=lengths,
            metrics={f"train/{name}": value for name, value in (metrics or {}).items()},
            seconds=seconds,
            env_failures=len(batch.get("episode_lost", ())),
            priorities=(batch["index"], priorities) if replayed and priorities is not None else None,
            episode_info=batch.get(EPISODE_INFO),
            num_stored=_num_stored(batch) if COLLECTED in batch else None,
        )

    def add_metrics(self, metrics: Mapping[str, float], **seconds: float) -> TrainStats:
        """Add metrics and seconds, and return the stats."""
        self.metrics.update({f"train/{name}": value for name, value in metrics.items()})
        self.seconds.update(seconds)
        return self

    @classmethod
    def merge(cls, stats: Sequence[TrainStats]) -> TrainStats:
        """Merge the stats of several steps: steps and seconds are summed, metrics averaged."""
        metrics: dict[str, list[float]] = {}
        seconds: Counter[str] = Counter()
        for part in stats:
            seconds.update(part.seconds)
            for name, value in part.metrics.items():
                metrics.setdefault(name, []).append(value)
        return cls(
            num_steps=sum(part.num_steps for part in stats),
            returns=np.concatenate([part.returns for part in stats]),
            lengths=np.concatenate([part.lengths for part in stats]),
            metrics={name: float(np.mean(values)) for name, values in metrics.items()},
            seconds=dict(seconds),
            env_failures=sum(part.env_failures for part in stats),
            episode_info=concat_episodes([part.episode_info for part in stats], [len(part.returns) for part in stats]),
            num_updates=sum(part.num_updates for part in stats),
        )


def _num_stored(batch: Batch) -> int:
    """Return the steps to train on that a batch stores: all its rows, or those of its sequences without burn-in."""
    return int(batch["mask"].sum()) if "mask" in batch else num_rows(without_episode_columns(batch))


class CountSteps:
    """Return the stats of batches that were collected and are not trained on directly."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> TrainStats:
        """Count the steps of a batch, and return the stats, with the policy lag."""
        self.learner.steps += num_steps(batch)
        return TrainStats.of(batch, self.learner.lag_metrics(envelope.version))


class AddProgress:
    """Add to samples from replay the progress of the run, `env_steps`: the learner's schedules follow it."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the number of environment steps so far."""
        return {**batch, "env_steps": np.int64(self.learner.steps)}


class MergeStats(Stateful):
    """Merge the stats of a collected batch with those of the training steps until the next one. Use with `combine`."""

    state_attributes: ClassVar[tuple[str, ...]] = ("held",)

    def __init__(self) -> None:
        self.held: list[TrainStats] = []

    def __call__(self, stats: TrainStats) -> list[TrainStats]:
        """Return the merged stats so far if these are of a batch that was collected; otherwise none."""
        done = [TrainStats.merge(self.held)] if stats.num_steps and self.held else []
        self.held = [*([] if done else self.held), stats]
        return done

    def finish(self) -> list[TrainStats]:
        """Return the stats that are left."""
        return [TrainStats.merge(self.held)] if self.held else []


class ReportMetrics(Stateful):
    """Turn stats into rows of metrics, under Stable-Baselines3's names, which existing plotting code can read."""

    state_attributes: ClassVar[tuple[str, ...]] = (
        "iterations", "timesteps", "episodes", "env_failures", "returns", "lengths", "best",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float] = time.perf_counter, token: str = "") -> None:
        self.episode_metrics = EpisodeMetrics(WINDOW, token)
        self.iterations = self.timesteps = self.episodes = self.env_failures = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.best: float | None = None
        self.elapsed = 0.0  # seconds
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Start the clock, adding to the time that was counted before."""
        self.start_iteration()
        self._begin = self._last - self.elapsed

    def start_iteration(self) -> None:
        """Start an iteration: saving and evaluating before it are not part of its phases."""
        self._last = self._clock()

    def __call__(self, stats: TrainStats) -> dict[str, Any]:
        """Return a row of metrics."""
        seconds = self.phase_seconds("rollouts", stats)
        self.iterations += 1
        self.timesteps += stats.num_steps
        self.episodes += len(stats.returns)
        self.env_failures += stats.env_failures
        self.returns.extend(stats.returns.tolist())
        self.lengths.extend(stats.lengths.tolist())
        mean = self.mean_return
        if mean is not None and self.full:
            self.best = mean if self.best is None else max(self.best, mean)
        return {
            "time/iterations": self.iterations,
            "time/total_timesteps": self.timesteps,
            "time/episodes": self.episodes,
            "time/time_elapsed": self.elapsed,
            "time/fps": self.timesteps / self.elapsed,
            "rollout/ep_rew_mean": mean,
            "rollout/ep_len_mean": float(np.mean(self.lengths)) if self.lengths else None,
            "rollout/iteration_rew_mean": float(np.mean(stats.returns)) if len(stats.returns) else None,
            **({"rollout/env_failures": self.env_failures} if self.env_failures else {}),
            **stats.metrics,
            **self.episode_metrics.add(len(stats.returns), stats.episode_info),
            **seconds,
            "returns": [round(value, 6) for value in stats.returns.tolist()],
        }

    def phase_seconds(self, source: str, stats: TrainStats) -> dict[str, float]:
        """End an iteration, and return how long its phases took. The source took the time that no other phase did."""
        now = self._clock()
        iteration_seconds, self._last, self.elapsed = now - self._last, now, now - self._begin
        seconds = {source: max(iteration_seconds - sum(stats.seconds.values()), 0.0), **stats.seconds}
        return {f"time/{phase}_seconds": value for phase, value in seconds.items()}

    def state(self) -> Any:
        """Return the state to resume from."""
        return {**super().state(), "episode_metrics": self.episode_metrics.state(), "wall": self.elapsed}

    def restore(self, state: Any) -> None:
        """Resume from a state."""
        super().restore(state)
        if "episode_metrics" in state:  # not in checkpoints of older versions
            self.episode_metrics.restore(state["episode_metrics"])
        self.elapsed = state["wall"]
        self.start()

    @property
    def steps(self) -> int:
        """What the run counts: environment steps."""
        return self.timesteps

    @property
    def full(self) -> bool:
        """Whether at least `WINDOW` episodes have ended."""
        return len(self.returns) == WINDOW

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last `WINDOW` episodes."""
        return float(np.mean(self.returns)) if self.returns else None
