"""Storage of stacked frames in which a frame is stored once, however many stacks contain it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raceway.errors import ConfigError
from raceway.replay.storage import ReplayStorage, common_length
from raceway.rl.batch import Batch

Array = np.ndarray

_STACKED_COLUMNS = ("obs", "next_obs")


class Frames:
    """A ring buffer of frames. They are numbered from 0, and the newest `capacity` are kept.

    A frame equal to one of the `recent` newest is not stored again. Frames are compared by content, so it does not
    matter which stacks overlap, and in which order they arrive.
    """

    def __init__(self, capacity: int, recent: int) -> None:
        self.capacity, self.recent = capacity, recent
        self.next = 0
        self.frames: Array = np.empty(0, np.uint8)
        self._numbers: dict[int, int] = {}  # by hash: the number of the newest frame with that hash
        self._hashes: list[int] = []  # by position in the ring

    def add(self, stacks: Array) -> Array:
        """Store the new frames of some stacks, [N, K, ...], and return the numbers of all frames, [N, K]."""
        if not self.next:
            self.frames = np.empty((self.capacity, *stacks.shape[2:]), stacks.dtype)
        if stacks.shape[2:] != self.frames.shape[1:] or stacks.dtype != self.frames.dtype:
            raise ConfigError(
                f"frames of shape {stacks.shape[2:]} and type {stacks.dtype} do not fit the stored frames of shape "
                f"{self.frames.shape[1:]} and type {self.frames.dtype}"
            )
        numbers = [self._store(frame) for stack in stacks for frame in stack]
        return np.array(numbers, np.int64).reshape(stacks.shape[:2])

    def _store(self, frame: Array) -> int:
        """Return the number of a frame, after storing it if it is new."""
        content = frame.tobytes()
        key = hash(content)
        number = self._numbers.get(key, -1)
        if number >= max(self.next - self.recent, 0) and self.frames[number % self.capacity].tobytes() == content:
            return number
        number, position = self.next, self.next % self.capacity
        self.next += 1
        if position == len(self._hashes):
            self._hashes.append(key)
        else:
            old, self._hashes[position] = self._hashes[position], key
            if self._numbers.get(old) == number - self.capacity:
                del self._numbers[old]
        self.frames[position], self._numbers[key] = frame, number
        return number

    def stacks(self, numbers: Array) -> Array:
        """Return the stacks whose frames have these numbers, [N, K, ...]."""
        return self.frames.take(numbers % self.capacity, axis=0)

    def state(self) -> Any:
        """Return the state for a checkpoint."""
        return {"next": self.next, "frames": self.frames[: min(self.next, self.capacity)].copy()}

    def restore(self, state: Any) -> None:
        """Restore a state."""
        self.next, frames = state["next"], state["frames"]
        self.frames = np.empty((self.capacity, *frames.shape[1:]), frames.dtype)
        self.frames[: len(frames)] = frames
        self._hashes = [hash(frame.tobytes()) for frame in frames]
        first = max(self.next - self.capacity, 0)
        self._numbers = {self._hashes[number % self.capacity]: number for number in range(first, self.next)}


class FrameStorage(ReplayStorage):
    """Replay storage that holds `obs` and `next_obs` as the numbers of their frames."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        # More frames than rows: every episode has one more, and rows may share recent frames.
        recent = capacity // 32 + 1024
        self.frames = Frames(capacity + 2 * recent, recent)

    def write(self, batch: Batch, number: int) -> None:
        """Write the rows of a batch, with the numbers of frames instead of stacks."""
        stored = dict(batch)
        # The oldest frame that these rows may refer to. It never decreases, so the oldest rows are evicted first.
        oldest = max(self.frames.next - self.frames.recent, 0)
        for name in _STACKED_COLUMNS:
            if name in batch:
                stack = batch[name]
                if isinstance(stack, Mapping) or stack.ndim < 3:
                    raise ConfigError(
                        f"stacked=True needs observations that are arrays of frames, [N, K, ...], but {name!r} is "
                        + (f"a mapping of {list(stack)}" if isinstance(stack, Mapping) else f"of shape {stack.shape}")
                    )
                stored[name] = self.frames.add(stack)
        stored["_oldest_frame"] = np.full(common_length(batch), oldest, np.int64)
        super().write(stored, number)

    def read(self, positions: Array) -> Batch:
        """Return the rows at these positions, with their stacks."""
        batch = super().read(positions)
        batch.pop("_oldest_frame")
        return batch | {name: self.frames.stacks(batch[name]) for name in _STACKED_COLUMNS if name in batch}

    def first_complete(self, first: int, end: int) -> int:
        """Return the number of the first row whose frames are all still stored."""
        oldest = self.frames.next - self.frames.capacity  # number of the oldest stored frame
        while first < end and self.arrays["_oldest_frame"][first % self.capacity] < oldest:
            first += 1
        return first

    def state(self, used: int) -> Any:
        """Return the first `used` rows, and the frames."""
        return {**super().state(used), "frames": self.frames.state()}

    def restore(self, state: Any, used: int) -> None:
        """Restore a state of `used` rows."""
        super().restore(state, used)
        self.frames.restore(state["frames"])
