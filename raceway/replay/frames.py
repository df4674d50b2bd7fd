"""Frames that are stored once, however many stacks of observations they are part of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.replay.storage import ReplayStorage, num_rows
from raceway.rl.batch import Batch

Array = np.ndarray

_STACKED = ("obs", "next_obs")


class Frames:
    """A ring of frames. They are numbered from 0, and the newest `capacity` are there.

    A frame that was seen lately (`recent` numbers ago) is not stored again: that is known by its contents, so nothing
    depends on which stacks overlap and in what order they come.
    """

    def __init__(self, capacity: int, recent: int) -> None:
        self.capacity, self.recent = capacity, recent
        self.next = 0
        self.frames: Array = np.empty(0, np.uint8)
        self._numbers: dict[int, int] = {}  # by hash, of the newest with that
        self._hashes: list[int] = []  # by place

    def add(self, stacks: Array) -> Array:
        """Store what is new of some stacks, [N, K, ...], and return the numbers of all their frames, [N, K]."""
        if not self.next:
            self.frames = np.empty((self.capacity, *stacks.shape[2:]), stacks.dtype)
        if stacks.shape[2:] != self.frames.shape[1:] or stacks.dtype != self.frames.dtype:
            raise ConfigError(
                f"frames of shape {stacks.shape[2:]} and type {stacks.dtype} cannot be stored beside others of shape "
                f"{self.frames.shape[1:]} and type {self.frames.dtype}"
            )
        numbers = [self._number(frame) for stack in stacks for frame in stack]
        return np.array(numbers, np.int64).reshape(stacks.shape[:2])

    def _number(self, frame: Array) -> int:
        content = frame.tobytes()
        key = hash(content)
        number = self._numbers.get(key, -1)
        if number >= max(self.next - self.recent, 0) and self.frames[number % self.capacity].tobytes() == content:
            return number
        number, place = self.next, self.next % self.capacity
        self.next += 1
        if place == len(self._hashes):
            self._hashes.append(key)
        else:
            old, self._hashes[place] = self._hashes[place], key
            if self._numbers.get(old) == number - self.capacity:
                del self._numbers[old]
        self.frames[place], self._numbers[key] = frame, number
        return number

    def stacks(self, numbers: Array) -> Array:
        """Return the stacks whose frames have these numbers, [N, K, ...]."""
        return self.frames.take(numbers % self.capacity, axis=0)

    def state(self) -> Any:
        """Return what is needed to go on from here."""
        return {"next": self.next, "frames": self.frames[: min(self.next, self.capacity)].copy()}

    def restore(self, state: Any) -> None:
        """Go on from there."""
        self.next, kept = state["next"], state["frames"]
        self.frames = np.empty((self.capacity, *kept.shape[1:]), kept.dtype)
        self.frames[: len(kept)] = kept
        self._hashes = [hash(frame.tobytes()) for frame in kept]
        first = max(self.next - self.capacity, 0)
        self._numbers = {self._hashes[number % self.capacity]: number for number in range(first, self.next)}


class FrameStorage(ReplayStorage):
    """Columns of which `obs` and `next_obs` are the numbers of frames."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # Some frames more than rows: every episode has one more, and rows may share those that were stored lately.
        recent = capacity // 32 + 1024
        self.frames = Frames(capacity + 2 * recent, recent)

    def write(self, batch: Batch, number: int) -> None:
        """Put in the rows of a batch, with the numbers of frames instead of stacks."""
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
        stored["_oldest_frame"] = np.full(num_rows(batch), oldest, np.int64)
        super().write(stored, number)

    def read(self, places: Array) -> Batch:
        """Return the rows at some places, with their stacks."""
        batch = super().read(places)
        batch.pop("_oldest_frame")
        return batch | {name: self.frames.stacks(batch[name]) for name in _STACKED if name in batch}

    def first_whole(self, first: int, end: int) -> int:
        """Return the number of the first row all of whose frames are there."""
        gone = self.frames.next - self.frames.capacity  # the number of the oldest frame that is there
        while first < end and self.arrays["_oldest_frame"][first % self.capacity] < gone:
            first += 1
        return first

    def state(self, used: int) -> Any:
        """Return what the first rows hold, and the frames."""
        return {**super().state(used), "frames": self.frames.state()}

    def restore(self, state: Any, used: int) -> None:
        """Hold that."""
        super().restore(state, used)
        self.frames.restore(state["frames"])
