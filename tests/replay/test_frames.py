import numpy as np
import pytest

from raceway.errors import ConfigError
from raceway.replay import Frames, frames

WIDTH = 6


def film(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (length, WIDTH), np.uint8)


def stacks_of(shots: np.ndarray, size: int = 3) -> np.ndarray:
    """Return overlapping stacks; before the first frame it is repeated."""
    padded = np.concatenate([shots[:1]] * (size - 1) + [shots])
    return np.stack([padded[step : step + size] for step in range(len(shots))])


def test_every_frame_is_stored_once() -> None:
    store, stacks = Frames(50, recent=10), stacks_of(film(30))
    numbers = store.add(stacks)
    assert store.next == 30
    np.testing.assert_array_equal(store.stacks(numbers), stacks)
    assert store.add(stacks[-1:]).tolist() == [[27, 28, 29]]
    assert store.next == 30


def test_the_newest_are_there() -> None:
    store, stacks = Frames(20, recent=5), stacks_of(film(100))
    numbers = store.add(stacks)
    there = numbers.min(1) >= store.next - store.capacity
    assert there.sum() == 18
    np.testing.assert_array_equal(store.stacks(numbers[there]), stacks[there])
    assert len(store._numbers) <= store.capacity, "what has left is not looked for"


def test_what_was_not_seen_lately_is_stored_again() -> None:
    store, shots = Frames(100, recent=5), film(20)
    store.add(shots[:, None])
    assert store.add(shots[:1, None]).tolist() == [[20]]
    assert store.add(shots[-1:, None]).tolist() == [[19]]


def test_frames_of_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "hash", lambda _: 7, raising=False)
    store, stacks = Frames(50, recent=10), stacks_of(film(12))
    np.testing.assert_array_equal(store.stacks(store.add(stacks)), stacks)


def test_goes_on_from_a_state() -> None:
    store, stacks = Frames(20, recent=8), stacks_of(film(60))
    store.add(stacks[:30])
    other = Frames(20, recent=8)
    other.restore(store.state())
    np.testing.assert_array_equal(other.add(stacks[30:]), store.add(stacks[30:]))
    np.testing.assert_array_equal(other.frames, store.frames)


def test_other_frames_are_refused() -> None:
    store = Frames(20, recent=8)
    store.add(film(2)[:, None])
    with pytest.raises(ConfigError, match=r"shape \(5,\).*beside others of shape \(6,\)"):
        store.add(np.zeros((1, 1, 5), np.uint8))
    with pytest.raises(ConfigError, match="type float32"):
        store.add(np.zeros((1, 1, WIDTH), np.float32))
