"""Datasets in flows: readers on actors, and the stream of minibatches."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raceway.checks import check_fraction, check_int
from raceway.datasets import Dataset, open_dataset
from raceway.engine.base import Actor
from raceway.errors import ConfigError
from raceway.flow import ParIter, Shard, StreamEnd, create, injected
from raceway.rl import Batch
from raceway.rl.seeding import Purpose, derive_seed
from raceway.state import Stateful

Array = np.ndarray


@dataclass(frozen=True, kw_only=True)
class DatasetSettings:
    """Which dataset is read, and how."""

    path: str
    """A folder, a JSONL file, a run with a dataset, or a Minari id; see `open_dataset`. Every reader must reach it."""
    batch_size: int = 256
    """Rows of one minibatch, which come from one shard."""
    num_shards: int = 1
    """Slices of consecutive rows that the dataset is divided into."""
    seed: int = 0
    next_obs: bool = False
    """Whether minibatches have `next_obs`."""
    gamma: float | None = None
    """Discount γ of a column `return`, the return from each step to the end of its episode; None leaves it out."""
    final_obs: bool = False
    """Whether minibatches have `final_obs` and `final_discount`, to bootstrap returns of truncated episodes with."""
    num_epochs: int | None = None
    """Epochs after which the stream ends; None for no end."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "num_shards"):
            check_int(name, getattr(self, name))
        check_int("seed", self.seed, 0)
        if self.gamma is not None:
            check_fraction("gamma", self.gamma)
        if self.num_epochs is not None:
            check_int("num_epochs", self.num_epochs)

    def check_size(self, dataset: Dataset) -> None:
        """Refuse a dataset with fewer rows than shards."""
        if self.num_shards > dataset.num_steps:
            raise ConfigError(
                f"{self.num_shards} shards cannot share the {dataset.num_steps} rows of {dataset.name}. Use at most "
                "one shard per row."
            )


class DatasetReader:
    """Reads minibatches of any shard of a dataset.

    A shard owns a slice of the rows. In every epoch it goes through them once, in an order that is shuffled by the seed
    and the numbers of the shard and the epoch. Minibatches are cut from this endless sequence of rows, all of the same
    size: one that reaches the end of an epoch continues with the next. If the stream ends, its last one may be smaller.

    So a minibatch depends on nothing but the shard and its own number. Any reader can read it, before or after a
    restart, and a resumed run continues in mid-epoch.
    """

    def __init__(self, settings: DatasetSettings) -> None:
        self.settings = settings
        self._dataset: Dataset | None = None
        self._orders: dict[int, tuple[int, Array]] = {}  # the epoch and the order of its rows, by shard

    @property
    def dataset(self) -> Dataset:
        """The dataset; it is opened with the first minibatch."""
        if self._dataset is None:
            dataset = open_dataset(self.settings.path)
            self.settings.check_size(dataset)
            self._dataset = dataset
        return self._dataset

    def pid(self) -> int:
        """Return the number of its process."""
        return os.getpid()

    def sample(self, *, shard: Shard = injected, number: int = injected) -> Batch:
        """Return a minibatch of a shard, by its number."""
        settings, rows = self.settings, rows_of_shard(self.dataset.num_steps, shard.number, shard.total)
        begin, end = number * settings.batch_size, (number + 1) * settings.batch_size
        if settings.num_epochs is not None:
            end = min(end, settings.num_epochs * len(rows))
            if begin >= end:
                raise StreamEnd
        parts = []
        while begin < end:
            epoch, first = divmod(begin, len(rows))
            parts.append(self._order(shard.number, epoch, rows)[first : first + end - begin])
            begin += len(parts[-1])
        return self.dataset.rows(
            np.concatenate(parts), next_obs=settings.next_obs, gamma=settings.gamma, final_obs=settings.final_obs
        )

    def _order(self, shard: int, epoch: int, rows: range) -> Array:
        """Return the rows of a shard in the order of an epoch."""
        if shard not in self._orders or self._orders[shard][0] != epoch:
            random = np.random.default_rng(derive_seed(self.settings.seed, Purpose.DATASET, shard, epoch))
            self._orders[shard] = epoch, rows.start + random.permutation(len(rows))
        return self._orders[shard][1]

    def state(self, *, shard: Shard = injected) -> Any:
        """Return what the order of a shard's rows depends on. Its position is the number of its next item."""
        settings = self.settings
        return {"dataset": self.dataset.sha256, "seed": settings.seed, "batch_size": settings.batch_size}

    def restore(self, state: Any, *, shard: Shard = injected) -> None:
        """Check that the stream can be continued: with the same dataset, seed and size of minibatches."""
        current = self.state(shard=shard)
        for name in current:
            if state[name] != current[name]:
                raise ConfigError(
                    f"the stream of the dataset {self.dataset.name} cannot be continued: its {name} was {state[name]}, "
                    f"and is {current[name]} now. Use the same as before, or start a new run."
                )


class AddDiscounts(Stateful):
    """Add the column `discount` to minibatches of a dataset: γ, or 0 after termination, not truncation.

    Args:
        gamma: the discount γ.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with the column."""
        return {**batch, "discount": np.where(batch["terminated"], np.float32(0), np.float32(self.gamma))}


def rows_of_shard(num_rows: int, shard: int, num_shards: int) -> range:
    """Return the rows that a shard owns. Their numbers differ by at most one between shards.

    >>> [rows_of_shard(10, shard, 3) for shard in range(3)]
    [range(0, 3), range(3, 6), range(6, 10)]
    """
    return range(num_rows * shard // num_shards, num_rows * (shard + 1) // num_shards)


def parallel_dataset(readers: Sequence[Actor], settings: DatasetSettings) -> ParIter[Batch]:
    """Return the stream of minibatches. Its shards do not depend on the number of readers."""
    return create(readers, "sample", num_shards=settings.num_shards, seed=settings.seed, moves=True)
