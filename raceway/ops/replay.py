"""Replay in flows: buffers on actors, what is put into them, what is drawn, and new priorities."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from raceway.checks import check_int
from raceway.engine.base import Actor
from raceway.errors import ConfigError, FlowError
from raceway.flow import Envelope, Iter, RateLimit, create, injected, send_msg
from raceway.ops.replay_ledger import Ledger, ReplayCounts
from raceway.ops.report import TrainStats
from raceway.replay import Replay
from raceway.rl import Batch, num_rows, rows_of

Array = np.ndarray

_MOMENT = 0.002  # seconds for which a buffer that has nothing to give holds up whoever asks


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """What replay holds, and how it is drawn from."""

    capacity: int
    """Rows in all shards together."""
    batch_size: int = 256
    """Rows of one sample."""
    num_shards: int = 1
    """Actors that it is divided over."""
    min_size: int = 1
    """Rows that a shard holds before it is drawn from."""
    seed: int = 0
    alpha: float | None = None
    """How much priorities count, from 0 to 1; without it, rows are drawn uniformly."""
    beta: float = 0.4
    """How far weights make up for that."""
    stacked: bool = False
    """Whether observations are stacks of frames, which are then stored once."""

    def __post_init__(self) -> None:
        for name in ("capacity", "batch_size", "num_shards", "min_size"):
            check_int(name, getattr(self, name))
        if self.capacity < self.num_shards:
            raise ConfigError(
                f"{self.num_shards} shards cannot share a capacity of {self.capacity}. Have at most one for every row."
            )
        if self.min_size > self.capacity // self.num_shards:
            raise ConfigError(
                f"a shard holds at most {self.capacity // self.num_shards} rows, so it never has min_size "
                f"{self.min_size}. Make capacity larger, or min_size smaller."
            )

    def make(self, number: int) -> Replay:
        """Make the buffer of one shard."""
        each, rest = divmod(self.capacity, self.num_shards)
        seed = np.random.SeedSequence(self.seed, spawn_key=(number,))
        more = {"alpha": self.alpha, "beta": self.beta, "stacked": self.stacked}
        return Replay(each + (number < rest), seed=int(seed.generate_state(1)[0]), **more)  # type: ignore[arg-type]


class ReplayShard:
    """A buffer on an actor: one of the shards of replay."""

    def __init__(self, settings: ReplaySettings, number: int = 0) -> None:
        self.settings = settings
        self.buffer = settings.make(number)
        self._from = number << 40  # the number of the first row

    def begin_again(self) -> None:
        """Give rows other numbers than before a restart: what was drawn then must not be taken for what is here."""
        self._from = (1 << 62) + (random.SystemRandom().getrandbits(20) << 40)

    def insert(self, batch: Batch) -> ReplayCounts:
        """Put rows in."""
        self.buffer.insert(batch)
        return self.counts()

    def sample(self) -> Batch | None:
        """Draw a batch; None, after a moment, as long as there are too few rows."""
        if len(self.buffer) < self.settings.min_size:
            time.sleep(_MOMENT)  # whoever asks will ask again: not thousands of times a second
            return None
        batch = self.buffer.sample(self.settings.batch_size)
        batch["index"] += self._from
        return batch

    def update(self, index: Array, priorities: Array) -> None:
        """Give rows that were drawn new priorities."""
        ours = index >= self._from
        ours &= index < self._from + self.buffer.next
        self.buffer.update(index[ours] - self._from, np.asarray(priorities)[ours])

    def counts(self) -> ReplayCounts:
        """Return how many rows there were."""
        return ReplayCounts(self.buffer.inserted, len(self.buffer), self.buffer.evicted)

    def state(self) -> Any:
        """Return what is needed to go on from here."""
        return {"buffer": self.buffer.state(), "from": self._from}

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.buffer.restore(state["buffer"])
        self._from = state["from"]


class StoreToReplay(Ledger):
    """Puts every batch into one of the shards, in turn, and gives it on."""

    def __call__(self, batch: Batch) -> Batch:
        """Store what is in a batch but the figures of whole episodes."""
        rows = rows_of(batch)
        if num := num_rows(rows):
            self.insert(rows, num)
        return batch


def parallel_replay(
    shards: Sequence[Actor], *, synchronous: bool = False, num_async: int = 2, policy: str = "restart"
) -> Iter[Batch]:
    """Make the stream of samples: of whichever shard is ready, or of all in step, one after the other.

    A shard whose actor dies is restarted, empty (or as `policy` says); meanwhile samples come from the others.
    """
    anew = lambda shard: send_msg(shard, "begin_again")  # noqa: E731
    many = create(shards, "sample").on_failure(policy, errors=False, on_restart=anew)
    stream: Iter[Any] = many.gather_sync().flatten() if synchronous else many.gather_async(num_async)
    return stream.filter(has_rows)


def has_rows(batch: Batch | None) -> bool:
    """Whether a shard had something to give."""
    return batch is not None


class UpdatePriorities:
    """Sends the priorities that a training step gave to the shard that its batch came from."""

    def __call__(self, stats: TrainStats, *, envelope: Envelope = injected) -> TrainStats:
        """Send them, and give the figures on."""
        if stats.priorities is None:
            raise FlowError("the training step before UpdatePriorities gave no priorities")
        if len(envelope.sources) != 1:
            raise FlowError(f"priorities are of a batch of one shard, and this came from {len(envelope.sources)}")
        actor = envelope.sources[0].actor
        if actor is not None and actor.alive:
            send_msg(actor, "update", *stats.priorities)
        return stats


def replay_limits(
    samples_per_insert: float, *, batch_size: int, min_size: int, ahead: int, store: str = "store",
    replay: str = "replay",
) -> list[RateLimit]:  # fmt: skip
    """Return limits for a union of a stream that stores and one that draws, so that neither runs ahead of the other.

    Args:
        samples_per_insert: how often a row is drawn on average.
        batch_size: rows of one sample.
        min_size: rows that are stored before the first is drawn.
        ahead: rows that may be stored beyond what drawing keeps up with.
        store: the name of the branch that stores.
        replay: that of the branch that draws.
    """
    if not samples_per_insert > 0:
        raise ConfigError(f"samples_per_insert must be a number above 0, not {samples_per_insert!r}")
    size, ratio = partial(_rows_used, batch_size=batch_size), samples_per_insert
    held = RateLimit(branch=replay, per=store, ratio=ratio, slack=-ratio * min_size, size=size)
    return [held, RateLimit(branch=store, per=replay, ratio=1 / ratio, slack=min_size + ahead, size=size)]


def _rows_used(item: Any, batch_size: int) -> int:
    """Return how many rows a batch holds, or what a training step of a batch of that size used."""
    return (item.num_steps or batch_size) if isinstance(item, TrainStats) else num_rows(rows_of(item))
