"""Replay in flows: buffers on actors, operators that store rows and update priorities, and the stream of samples."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from raceway.checks import check_int
from raceway.engine.base import Actor
from raceway.envs import EnvSettings
from raceway.envs.goals import GoalFunctions
from raceway.errors import ConfigError, FlowError
from raceway.flow import Envelope, Iter, NotReady, RateLimit, create, injected, send_msg
from raceway.ops.replay_insertion import ReplayCounts, ReplayInserter
from raceway.ops.report import TrainStats
from raceway.replay import Hindsight, Replay
from raceway.rl import Batch, LinearSchedule, num_rows, without_episode_columns

Array = np.ndarray

_NOT_READY_SECONDS = 0.002  # how long a buffer with too few rows waits before it says so


@dataclass(frozen=True, kw_only=True)
class HindsightSettings:
    """How goals are replaced in sampled transitions; see `raceway.replay.Hindsight`."""

    env: EnvSettings
    """The environment, which computes the rewards of other goals."""
    gamma: float
    """The discount γ."""
    num_goals: int = 4
    """New goals for each original one."""
    strategy: str = "future"
    """Where new goals come from: `future`, `final` or `episode`."""

    def make(self) -> Hindsight:
        """Return what replaces goals, with an environment of its own."""
        return Hindsight(GoalFunctions(self.env), self.gamma, self.num_goals, self.strategy)


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """Size of the replay buffer, and how it is sampled."""

    capacity: int
    """Rows in all shards together."""
    batch_size: int = 256
    """Rows of one gradient step."""
    batches_per_sample: int = 1
    """Batches that are sampled at once. Uniform sampling one by one gives the same rows, but costs more calls."""
    num_shards: int = 1
    """Actors that the buffer is divided over."""
    min_size: int = 1
    """Rows that a shard holds before it is sampled from."""
    seed: int = 0
    alpha: float | None = None
    """Exponent of priorities, from 0 to 1; None samples uniformly."""
    beta: float = 0.4
    """Exponent of the importance weights, from 0 to 1."""
    beta_end: float | None = None
    """Its final value, after a linear change over `beta_rows`. Without either, it is constant."""
    beta_rows: int | None = None
    """Rows inserted into all shards together until the final exponent."""
    stacked: bool = False
    """Whether observations are stacks of frames, which are then stored once."""
    hindsight: HindsightSettings | None = None
    """How goals are replaced in samples; None leaves them as they are. Rows are those of `EpisodeTransitions`."""

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size", "batches_per_sample", "num_shards", "min_size"):
            check_int(name, getattr(self, name))
        if self.beta_rows is not None:
            check_int("beta_rows", self.beta_rows)
        if self.alpha is not None and self.batches_per_sample > 1:
            raise ConfigError(
                f"prioritised replay samples one batch at a time, not {self.batches_per_sample}: its priorities change "
                "with every gradient step. Set batches_per_sample to 1."
            )
        if self.capacity < self.num_shards:
            raise ConfigError(
                f"{self.num_shards} shards cannot share a capacity of {self.capacity}. Use at most one shard per row."
            )
        if self.min_size > self.capacity // self.num_shards:
            raise ConfigError(
                f"a shard holds at most {self.capacity // self.num_shards} rows, so it never has min_size "
                f"{self.min_size}. Make capacity larger, or min_size smaller."
            )

    def with_rows_of(self, steps: int) -> ReplaySettings:
        """Return these settings, which count steps, for rows of several steps each."""
        if steps > 1 and self.stacked:
            raise ConfigError(
                "stacked frames are stored once in transitions only, not in the sequences of a recurrent network. "
                "Set stacked_frames to False."
            )
        capacity, batch_size = max(self.capacity // steps, self.num_shards), max(self.batch_size // steps, 1)
        min_size = min(-(-self.min_size // steps), capacity // self.num_shards)
        beta_rows = None if self.beta_rows is None else max(self.beta_rows // steps, 1)
        changed = {"capacity": capacity, "batch_size": batch_size, "min_size": min_size, "beta_rows": beta_rows}
        return dataclasses.replace(self, **changed)  # type: ignore[arg-type]

    def make(self, number: int) -> Replay:
        """Create the buffer of one shard."""
        rows_per_shard, rest = divmod(self.capacity, self.num_shards)
        seed = np.random.SeedSequence(self.seed, spawn_key=(number,))
        beta: float | LinearSchedule = self.beta
        if self.beta_end is not None and self.beta_rows is not None:
            # By the rows of this shard, which it knows exactly, also after it was resumed.
            beta = LinearSchedule(self.beta, self.beta_end, self.beta_rows / self.num_shards)
        options = {"alpha": self.alpha, "beta": beta, "stacked": self.stacked}
        capacity = rows_per_shard + (number < rest)
        hindsight = None if self.hindsight is None else self.hindsight.make()
        return Replay(capacity, seed=int(seed.generate_state(1)[0]), hindsight=hindsight, **options)  # type: ignore[arg-type]


class ReplayShard:
    """One shard of the replay buffer, on an actor."""

    def __init__(self, settings: ReplaySettings, number: int = 0) -> None:
        self.settings = settings
        self.buffer = settings.make(number)
        self._first_index = number << 40  # the index of the first row

    def renumber_rows(self) -> None:
        """Use new row indices after a restart, so that samples from before it do not refer to the new rows."""
        self._first_index = (1 << 62) + (random.SystemRandom().getrandbits(20) << 40)

    def insert(self, batch: Batch) -> ReplayCounts:
        """Insert rows, and return the counts."""
        self.buffer.insert(batch)
        return self.counts()

    def sample(self) -> Batch:
        """Return a sampled batch. Raise `NotReady`, after a short wait, as long as there are too few rows."""
        if len(self.buffer) < self.settings.min_size:
            time.sleep(_NOT_READY_SECONDS)  # or the flow would ask thousands of times per second
            raise NotReady
        num = self.settings.batches_per_sample
        batch = self.buffer.sample(self.settings.batch_size * num)
        batch["index"] += self._first_index
        if num > 1:
            batch["num_batches"] = np.int64(num)
        return batch

    def update(self, index: Array, priorities: Array) -> None:
        """Set the priorities of sampled rows."""
        known = index >= self._first_index
        known &= index < self._first_index + self.buffer.next
        self.buffer.update(index[known] - self._first_index, np.asarray(priorities)[known])

    def counts(self) -> ReplayCounts:
        """Return the numbers of rows inserted so far, in the buffer, and evicted."""
        return ReplayCounts(self.buffer.inserted, len(self.buffer), self.buffer.evicted)

    def state(self) -> Any:
        """Return the state to resume from."""
        return {"buffer": self.buffer.state(), "first_index": self._first_index}

    def restore(self, state: Any) -> None:
        """Resume from a state."""
        self.buffer.restore(state["buffer"])
        self._first_index = state["first_index"]


class StoreToReplay(ReplayInserter):
    """Store every batch in one of the shards, in turn, and return it."""

    def __call__(self, batch: Batch) -> Batch:
        """Store the columns of a batch, except those of whole episodes."""
        rows = without_episode_columns(batch)
        if num := num_rows(rows):
            self.insert(rows, num)
        return batch


def parallel_replay(
    shards: Sequence[Actor], *, synchronous: bool = False, num_async: int = 2, policy: str = "restart"
) -> Iter[Batch]:
    """Return the stream of samples: from whichever shard is ready, or synchronously from all shards in turn.

    A shard with too few rows is pending: in turn, the stream waits for it; otherwise samples come from the others. One
    whose actor dies is restarted with an empty buffer (or as the failure `policy` says); meanwhile samples
    come from the others.
    """
    renumber = lambda shard: send_msg(shard, "renumber_rows")  # noqa: E731
    samples = create(shards, "sample").on_failure(policy, errors=False, on_restart=renumber)
    return samples.gather_sync().flatten() if synchronous else samples.gather_async(num_async)


class UpdatePriorities:
    """Send the priorities that a training step computed to the shard that its batch came from."""

    def __call__(self, stats: TrainStats, *, envelope: Envelope = injected) -> TrainStats:
        """Send the priorities, and return the stats."""
        if stats.priorities is None:
            raise FlowError("the training step before UpdatePriorities returned no priorities")
        if len(envelope.sources) != 1:
            raise FlowError(f"UpdatePriorities needs a batch of one shard, but this came from {len(envelope.sources)}")
        actor = envelope.sources[0].actor
        if actor is not None and actor.alive:
            send_msg(actor, "update", *stats.priorities)
        return stats


def replay_limits(
    samples_per_insert: float, *, batch_size: int, min_size: int, ahead: int, store: str = "store",
    replay: str = "replay",
) -> list[RateLimit]:  # fmt: skip
    """Return rate limits for a union of a storing and a sampling branch, so that neither runs ahead of the other.

    Args:
        samples_per_insert: how often a row is sampled on average.
        batch_size: rows of one sample.
        min_size: rows that are stored before the first is sampled.
        ahead: rows by which storing may be ahead of sampling.
        store: the name of the storing branch.
        replay: the name of the sampling branch.
    """
    if not samples_per_insert > 0:
        raise ConfigError(f"samples_per_insert must be a number above 0, not {samples_per_insert!r}")
    size, ratio = partial(_rows_used, batch_size=batch_size), samples_per_insert
    sampling = RateLimit(branch=replay, per=store, ratio=ratio, slack=-ratio * min_size, size=size)
    storing = RateLimit(branch=store, per=replay, ratio=1 / ratio, slack=min_size + ahead, size=size)
    return [sampling, storing]


def _rows_used(item: Any, batch_size: int) -> int:
    """Return the number of rows of a stored batch, or of the sample that a training step used.

    Of sequences it is the number of steps in them that are trained, in which `batch_size` counts them too.
    """
    if not isinstance(item, TrainStats):
        return num_rows(without_episode_columns(item))
    return (item.num_steps or batch_size) if item.num_stored is None else item.num_stored
