"""A replay buffer: the newest rows of experience, drawn from uniformly or by priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.errors import ConfigError, ReplayEmpty, whole
from raceway.replay.frames import Frames
from raceway.replay.sum_tree import SumTree
from raceway.rl.batch import Batch, tree_map

Array = np.ndarray

_STACKED = ("obs", "next_obs")


class Replay:
    """Holds the newest `capacity` rows. A row is a transition, a sequence, or whatever the columns of batches have.

    Rows are numbered as they come in; a sample says the numbers of its rows as `index`.

    >>> replay = Replay(100, seed=0)
    >>> replay.insert({"obs": np.arange(5.0), "reward": np.ones(5)})
    >>> sorted(replay.sample(2))
    ['index', 'obs', 'reward']

    Args:
        capacity: rows that it holds.
        seed: of what is drawn.
        alpha: how much priorities count (Schaul et al. 2016, α): 0 not at all, 1 in proportion. Without it, rows are
            drawn uniformly.
        beta: how far `weight`, which a sample then has, makes up for that (β).
        stacked: whether `obs` and `next_obs` are stacks of frames, [K, ...], whose frames are to be stored once.
    """

    def __init__(
        self, capacity: int, *, seed: int = 0, alpha: float | None = None, beta: float = 0.4, stacked: bool = False
    ) -> None:
        self.capacity = whole("capacity", capacity)
        if alpha is not None and not 0 <= alpha <= 1:
            raise ConfigError(f"alpha must be a number from 0 to 1, not {alpha!r}")
        self.alpha, self.beta = alpha, beta
        self.next = 0  # the number of the next row
        self.first = 0  # that of the oldest
        self.columns: Batch = {}
        self.random = np.random.default_rng(seed)
        self.highest = 1.0  # of the priorities so far, which new rows get
        self.tree = None if alpha is None else SumTree(capacity)
        # Some frames more than rows: every episode has one more, and rows may share those that were stored lately.
        recent = capacity // 32 + 1024
        self.frames = Frames(capacity + 2 * recent, recent) if stacked else None

    def __len__(self) -> int:
        return self.next - self.first

    @property
    def inserted(self) -> int:
        """How many rows were put in."""
        return self.next

    @property
    def evicted(self) -> int:
        """How many had to leave for newer ones."""
        return self.first

    def insert(self, batch: Batch, priorities: Array | None = None) -> None:
        """Put in the rows of a batch. The oldest leave."""
        num = _num_rows(batch)
        if num == 0:
            return
        skipped = max(num - self.capacity, 0)  # these would leave at once
        if skipped:
            batch, num = tree_map(lambda column: column[skipped:], batch), self.capacity
            priorities = None if priorities is None else priorities[skipped:]
        if self.frames is not None:
            batch = self._with_numbers(batch)
        if not self.columns:
            self.columns = tree_map(lambda part: np.zeros((self.capacity, *part.shape[1:]), part.dtype), batch)
        _check_columns(self.columns, batch)
        begin = self.next + skipped
        place = begin % self.capacity
        fits = min(num, self.capacity - place)

        def write(column: Array, rows: Array) -> None:
            column[place : place + fits] = rows[:fits]
            column[: num - fits] = rows[fits:]

        tree_map(write, self.columns, batch)
        self.next = begin + num
        self._evict()
        if self.tree is not None:
            numbers = np.arange(begin, self.next)
            self.tree.put(numbers % self.capacity, self.highest**self.alpha)  # type: ignore[operator]
            if priorities is not None:
                self.update(numbers, priorities)

    def _evict(self) -> None:
        """Let go of the oldest rows: there is no room for them, or for some of their frames."""
        first = max(self.next - self.capacity, self.first)
        if self.frames is not None:
            gone = self.frames.next - self.frames.capacity  # the number of the oldest frame that is there
            while first < self.next and self.columns["_oldest_frame"][first % self.capacity] < gone:
                first += 1
            if self.tree is not None and first > self.first:
                self.tree.put(np.arange(max(self.first, first - self.capacity), first) % self.capacity, 0.0)
        self.first = first

    def _with_numbers(self, batch: Batch) -> Batch:
        """Return a batch with the numbers of frames instead of stacks."""
        assert self.frames is not None
        stored = dict(batch)
        # No row refers to a frame that is older than this: it is the same for all, so the oldest rows go first.
        oldest = max(self.frames.next - self.frames.recent, 0)
        for name in _STACKED:
            if name in batch:
                stack = batch[name]
                if isinstance(stack, Mapping) or stack.ndim < 3:
                    raise ConfigError(
                        f"stacked=True is for observations that are arrays of frames, [N, K, ...], and {name!r} is "
                        + (f"a mapping of {list(stack)}" if isinstance(stack, Mapping) else f"of shape {stack.shape}")
                    )
                stored[name] = self.frames.add(stack)
        stored["_oldest_frame"] = np.full(_num_rows(batch), oldest, np.int64)
        return stored

    def sample(self, num: int) -> Batch:
        """Draw so many rows, with replacement."""
        if not len(self):
            raise ReplayEmpty("nothing can be drawn from a replay buffer that holds nothing yet. Insert rows first.")
        if self.tree is None:
            numbers = self.random.integers(self.first, self.next, num)
            places = numbers % self.capacity
        else:
            # One from each of `num` equal parts of the sum: as likely, and more even.
            targets = (np.arange(num) + self.random.random(num)) * (self.tree.total / num)
            places = self.tree.find(targets)
            newest = self.next - 1
            numbers = newest - (newest - places) % self.capacity
        batch: Batch = tree_map(lambda column: column.take(places, axis=0), self.columns)
        if self.frames is not None:
            batch.pop("_oldest_frame")
            batch |= {name: self.frames.stacks(batch[name]) for name in _STACKED if name in batch}
        batch["index"] = numbers
        if self.tree is not None:
            batch["weight"] = self._weights(places)
        return batch

    def _weights(self, places: Array) -> Array:
        assert self.tree is not None
        weights = self.tree.values[places] ** -self.beta
        return (weights / weights.max()).astype(np.float32)

    def update(self, index: Array, priorities: Array) -> None:
        """Give the rows of these numbers new priorities. Those that have left are passed over."""
        if self.tree is None or self.alpha is None:
            raise ConfigError("a uniform replay buffer has no priorities. Make it with alpha=0.6, or the like.")
        priorities = np.asarray(priorities, float)
        bad = ~np.isfinite(priorities) | (priorities < 0)
        if bad.any():
            raise ConfigError(f"a priority is a number from 0, not {priorities[bad][0]}")
        there = index >= self.first
        priorities = priorities[there] + 1e-6  # or a row could never be drawn again
        if len(priorities):
            self.highest = max(self.highest, float(priorities.max()))
            self.tree.put(index[there] % self.capacity, priorities**self.alpha)

    def state(self) -> Any:
        """Return what is needed to go on from here, exactly."""
        used = min(self.next, self.capacity)
        return {
            "first": self.first,
            "next": self.next,
            "columns": tree_map(lambda column: column[:used].copy(), self.columns),
            "random": self.random.bit_generator.state,
            "highest": self.highest,
            "priorities": None if self.tree is None else self.tree.values[:used].copy(),
            "frames": None if self.frames is None else self.frames.state(),
        }

    def restore(self, state: Any) -> None:
        """Go on from there."""
        used = min(state["next"], self.capacity)
        if state["next"] - state["first"] > self.capacity or any(
            len(column) != used for column in _leaves(state["columns"])
        ):
            raise ConfigError(
                f"the state is of a replay buffer of another capacity than {self.capacity}. Make one of the same size."
            )
        self.first, self.next, self.highest = state["first"], state["next"], state["highest"]
        self.columns = tree_map(lambda part: np.zeros((self.capacity, *part.shape[1:]), part.dtype), state["columns"])
        tree_map(lambda column, part: np.copyto(column[:used], part), self.columns, state["columns"])
        self.random.bit_generator.state = state["random"]
        if self.tree is not None:
            self.tree.put(np.arange(used), state["priorities"])
        if self.frames is not None:
            self.frames.restore(state["frames"])


def _num_rows(batch: Batch) -> int:
    sizes = {len(column) for column in _leaves(batch)}
    if len(sizes) != 1:
        raise ConfigError(f"the columns of a batch for replay have one length, not {sorted(sizes)}: {list(batch)}")
    return sizes.pop()


def _leaves(tree: Any) -> list[Array]:
    if isinstance(tree, Mapping):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    return [tree]


def _check_columns(columns: Any, batch: Any, name: str = "") -> None:
    """Refuse rows that do not fit beside those that are there: numpy would repeat or round them without a word."""
    if isinstance(columns, Mapping):
        if not isinstance(batch, Mapping) or columns.keys() != batch.keys():
            shown = list(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise ConfigError(f"replay holds the columns {list(columns)}{name}, and these are {shown}")
        for key in columns:
            _check_columns(columns[key], batch[key], f" of {key!r}")
    elif columns.shape[1:] != batch.shape[1:] or columns.dtype != batch.dtype:
        raise ConfigError(
            f"replay holds rows{name} of shape {columns.shape[1:]} and type {columns.dtype}, and these are of shape "
            f"{batch.shape[1:]} and type {batch.dtype}"
        )
