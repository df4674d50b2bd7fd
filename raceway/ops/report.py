"""Figures: what a training step says of itself, and what a run says of all of them."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from raceway.flow import Envelope, injected
from raceway.learner.learner import Learner
from raceway.rl import Batch, episode_sums, num_steps
from raceway.state import Stateful, record

_NONE = np.empty(0)
WINDOW = 100  # episodes that a mean return is of


@record(wall_clock=("seconds",), formerly=("TrainStats",))
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
    env_failures: int = 0
    """Failures of environments that were borne."""
    priorities: tuple[np.ndarray, np.ndarray] | None = None
    """Of a batch from prioritised replay: the `index` of its rows, and their new priorities."""
    news: Any = None
    """The weights after it, and their version, if they were trained elsewhere; see `Learner`."""

    @classmethod
    def of(cls, batch: Batch, figures: Mapping[str, Any] | None = None, **seconds: float) -> TrainStats:
        """Return what is known of a batch that was played, or drawn from replay, and of training on it."""
        figures = dict(figures or {})
        errors = figures.pop("td_error", None)
        if "length" in batch and "episode_return" not in batch:
            returns, lengths = episode_sums(batch["reward"], batch["length"]), batch["length"]
        else:
            returns, lengths = batch.get("episode_return", _NONE), batch.get("episode_length", _NONE)
        drawn = "index" in batch  # its steps were counted when they were played
        return cls(
            num_steps=0 if drawn else num_steps(batch),
            returns=returns,
            lengths=lengths,
            metrics={f"train/{name}": value for name, value in figures.items()},
            seconds=seconds,
            env_failures=len(batch.get("episode_lost", ())),
            priorities=(batch["index"], abs(errors)) if drawn and errors is not None else None,
        )

    def with_figures(self, figures: Mapping[str, float], **seconds: float) -> TrainStats:
        """Add figures and seconds, and return it."""
        self.metrics.update({f"train/{name}": value for name, value in figures.items()})
        self.seconds.update(seconds)
        return self

    @classmethod
    def merged(cls, many: Sequence[TrainStats]) -> TrainStats:
        """Return the figures of several steps as those of one: sums of steps and seconds, means of the rest."""
        metrics: dict[str, list[float]] = {}
        seconds: Counter[str] = Counter()
        for one in many:
            seconds.update(one.seconds)
            for name, value in one.metrics.items():
                metrics.setdefault(name, []).append(value)
        return cls(
            num_steps=sum(one.num_steps for one in many),
            returns=np.concatenate([one.returns for one in many]),
            lengths=np.concatenate([one.lengths for one in many]),
            metrics={name: float(np.mean(values)) for name, values in metrics.items()},
            seconds=dict(seconds),
            env_failures=sum(one.env_failures for one in many),
        )


class CountSteps:
    """Says what is known of batches that were played and are not trained on by themselves."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def __call__(self, batch: Batch, *, envelope: Envelope = injected) -> TrainStats:
        """Return it, with how old the weights were."""
        return TrainStats.of(batch, self.learner.behind(envelope.version))


class MergeStats:
    """Makes one entry of many training steps: of those that follow a batch that was played, until the next one."""

    def __init__(self) -> None:
        self.held: list[TrainStats] = []

    def __call__(self, stats: TrainStats) -> list[TrainStats]:
        """Return what there was before, if this is of a batch that was played."""
        done = [TrainStats.merged(self.held)] if stats.num_steps and self.held else []
        self.held = [*([] if done else self.held), stats]
        return done

    def finish(self) -> list[TrainStats]:
        """Return what is left."""
        return [TrainStats.merged(self.held)] if self.held else []


class ReportMetrics(Stateful):
    """Adds up what training steps say, under the names that people's plots already read (Stable-Baselines3's)."""

    state_attributes: ClassVar[tuple[str, ...]] = (
        "iterations", "timesteps", "episodes", "env_failures", "returns", "lengths", "best",
    )  # fmt: skip

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.iterations = self.timesteps = self.episodes = self.env_failures = 0
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.lengths: deque[int] = deque(maxlen=WINDOW)
        self.best: float | None = None
        self.elapsed = 0.0  # seconds
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Count the time from now on, after what was counted before."""
        self._last = self._clock()
        self._begin = self._last - self.elapsed

    def __call__(self, stats: TrainStats) -> dict[str, Any]:
        """Return one line of metrics."""
        now = self._clock()
        spent, self._last = now - self._last, now
        self.iterations += 1
        self.timesteps += stats.num_steps
        self.episodes += len(stats.returns)
        self.env_failures += stats.env_failures
        self.returns.extend(stats.returns.tolist())
        self.lengths.extend(stats.lengths.tolist())
        mean = self.mean_return
        if mean is not None and self.full:
            self.best = mean if self.best is None else max(self.best, mean)
        seconds = {"rollouts": max(spent - sum(stats.seconds.values()), 0.0), **stats.seconds}
        elapsed = self.elapsed = now - self._begin
        return {
            "time/iterations": self.iterations,
            "time/total_timesteps": self.timesteps,
            "time/episodes": self.episodes,
            "time/time_elapsed": elapsed,
            "time/fps": self.timesteps / elapsed,
            "rollout/ep_rew_mean": mean,
            "rollout/ep_len_mean": float(np.mean(self.lengths)) if self.lengths else None,
            "rollout/iteration_rew_mean": float(np.mean(stats.returns)) if len(stats.returns) else None,
            **({"rollout/env_failures": self.env_failures} if self.env_failures else {}),
            **stats.metrics,
            **{f"time/{phase}_seconds": value for phase, value in seconds.items()},
            "returns": [round(value, 6) for value in stats.returns.tolist()],
        }

    def state(self) -> Any:
        """Return what is needed to go on from here."""
        return {**super().state(), "wall": self.elapsed}

    def restore(self, state: Any) -> None:
        """Go on from there."""
        super().restore(state)
        self.elapsed = state["wall"]
        self.start()

    @property
    def full(self) -> bool:
        """Whether a hundred episodes have ended."""
        return len(self.returns) == WINDOW

    @property
    def mean_return(self) -> float | None:
        """The mean return of the last hundred episodes."""
        return float(np.mean(self.returns)) if self.returns else None
