"""Frames that are stored once, however many stacks contain them."""

import numpy as np
import pytest

from raceway.errors import ConfigError
from raceway.replay import Frames, frame_storage

WIDTH = 6


def random_frames(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (length, WIDTH), np.uint8)


def stacks_of(images: np.ndarray, size: int = 3) -> np.ndarray:
    """Return overlapping stacks; the first frame is repeated at the start."""
    padded = np.concatenate([images[:1]] * (size - 1) + [images])
    return np.stack([padded[step : step + size] for step in range(len(images))])


def test_every_frame_is_stored_once() -> None:
    store, stacks = Frames(50, recent=10), stacks_of(random_frames(30))
    numbers = store.add(stacks)
    assert store.next == 30
    np.testing.assert_array_equal(store.stacks(numbers), stacks)
    assert store.add(stacks[-1:]).tolist() == [[27, 28, 29]]
    assert store.next == 30


def test_the_newest_frames_are_kept() -> None:
    store, stacks = Frames(20, recent=5), stacks_of(random_frames(100))
    numbers = store.add(stacks)
    stored = numbers.min(1) >= store.next - store.capacity
    assert stored.sum() == 18
    np.testing.assert_array_equal(store.stacks(numbers[stored]), stacks[stored])
    assert len(store._numbers) <= store.capacity, "evicted frames are forgotten"


def test_a_frame_that_is_not_recent_is_stored_again() -> None:
    store, images = Frames(100, recent=5), random_frames(20)
    store.add(images[:, None])
    assert store.add(images[:1, None]).tolist() == [[20]]
    assert store.add(images[-1:, None]).tolist() == [[19]]


def test_frames_with_the_same_hash_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_storage, "hash", lambda _: 7, raising=False)
    store, stacks = Frames(50, recent=10), stacks_of(random_frames(12))
    np.testing.assert_array_equal(store.stacks(store.add(stacks)), stacks)


def test_a_restored_store_continues_exactly() -> None:
    store, stacks = Frames(20, recent=8), stacks_of(random_frames(60))
    store.add(stacks[:30])
    other = Frames(20, recent=8)
    other.restore(store.state())
    np.testing.assert_array_equal(other.add(stacks[30:]), store.add(stacks[30:]))
    np.testing.assert_array_equal(other.frames, store.frames)


def test_frames_of_another_shape_or_type_are_refused() -> None:
    store = Frames(20, recent=8)
    store.add(random_frames(2)[:, None])
    with pytest.raises(ConfigError, match=r"shape \(5,\).*the stored frames of shape \(6,\)"):
        store.add(np.zeros((1, 1, 5), np.uint8))
    with pytest.raises(ConfigError, match="type float32"):
        store.add(np.zeros((1, 1, WIDTH), np.float32))
