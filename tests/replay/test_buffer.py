"""The replay buffer: which rows it holds, how it samples them, and its state."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raceway.errors import ConfigError, ReplayEmpty
from raceway.replay import Replay
from raceway.replay.frame_storage import FrameStorage
from raceway.rl import Batch, LinearSchedule
from tests.replay.test_frame_storage import random_frames, stacks_of


def rows(first: int, num: int) -> Batch:
    numbers = np.arange(first, first + num)
    nested = {"a": numbers.astype(np.float32), "b": np.stack([numbers, -numbers], 1)}
    return {"obs": nested, "reward": numbers.astype(np.float32)}


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Return the deviations of the statistic from its mean; for many degrees of freedom it is nearly normal."""
    degrees = len(expected) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / np.sqrt(2 * degrees))


@given(st.integers(1, 12), st.lists(st.integers(0, 30), max_size=8))
def test_the_newest_rows_are_held(capacity: int, sizes: list[int]) -> None:
    replay, total = Replay(capacity), 0
    for size in sizes:
        replay.insert(rows(total, size))
        total += size
        assert (replay.inserted, len(replay)) == (total, min(total, capacity))
        assert replay.inserted == len(replay) + replay.evicted
    if total:
        batch = replay.sample(300)
        np.testing.assert_array_equal(batch["reward"], batch["index"])
        np.testing.assert_array_equal(batch["obs"]["b"], np.stack([batch["index"], -batch["index"]], 1))
        assert set(batch["index"]) <= set(range(max(total - capacity, 0), total))


def test_every_row_is_equally_likely() -> None:
    replay = Replay(1000, seed=3)
    for begin, size in ((0, 700), (700, 1), (701, 650)):
        replay.insert(rows(begin, size))
    sampled = np.concatenate([replay.sample(1000)["index"] for _ in range(200)])
    counts = np.bincount(sampled - 351, minlength=1000)
    assert len(counts) == 1000
    assert abs(chi_square(counts, np.full(1000, 200.0))) < 5


def test_batches_sampled_at_once_are_those_sampled_one_by_one() -> None:
    together, one_by_one = Replay(50, seed=7), Replay(50, seed=7)
    for replay in (together, one_by_one):
        replay.insert(rows(0, 80))
    numbers = [one_by_one.sample(8)["index"] for _ in range(5)]
    np.testing.assert_array_equal(together.sample(40)["index"], np.concatenate(numbers))


def test_rows_are_sampled_in_proportion_to_their_priorities() -> None:
    replay = Replay(64, seed=1, alpha=0.5, beta=1.0)
    replay.insert(rows(0, 100))
    numbers = np.arange(36, 100)
    priorities = (numbers - 35.0) ** 2
    replay.update(numbers, priorities)
    sampled = np.concatenate([replay.sample(64)["index"] for _ in range(2000)])
    weights = np.sqrt(priorities + 1e-6)
    counts = np.bincount(sampled - 36, minlength=64)
    # Sampling is stratified, so the counts scatter less than independent samples.
    assert chi_square(counts, len(sampled) * weights / weights.sum()) < 5
    batch = replay.sample(64)
    expected = 1 / weights[batch["index"] - 36]
    np.testing.assert_allclose(batch["weight"], expected / expected.max(), rtol=1e-5)


def test_new_rows_have_the_highest_priority_so_far_or_their_own() -> None:
    replay = Replay(8, alpha=1.0)
    replay.insert(rows(0, 2))
    replay.update(np.array([1]), np.array([5.0]))
    replay.insert(rows(2, 1))
    replay.insert(rows(3, 2), priorities=np.array([2.0, 0.0]))
    np.testing.assert_allclose(replay.sampler.tree.values[:5], [1, 5, 5, 2, 0], atol=1e-5)  # type: ignore[union-attr]
    assert replay.sampler.tree.values[4] > 0, "it can still be sampled"  # type: ignore[union-attr]


def test_priorities_of_evicted_rows_are_skipped() -> None:
    replay = Replay(4, alpha=1.0)
    replay.insert(rows(0, 6))
    before = replay.sampler.tree.values.copy()  # type: ignore[union-attr]
    replay.update(np.array([0, 1]), np.array([9.0, 9.0]))
    np.testing.assert_array_equal(replay.sampler.tree.values, before)  # type: ignore[union-attr]
    assert replay.sampler.highest == 1


@pytest.mark.parametrize("priority", [np.nan, np.inf, -0.5])
def test_invalid_priorities_are_refused(priority: float) -> None:
    replay = Replay(4, alpha=1.0)
    replay.insert(rows(0, 4))
    with pytest.raises(ConfigError, match=f"not {priority}"):
        replay.update(np.array([0, 1]), np.array([1.0, priority]))
    assert replay.sampler.tree.total == 4, "nothing has changed"  # type: ignore[union-attr]


@pytest.mark.parametrize("settings", [{}, {"alpha": 0.6}, {"stacked": True}, {"alpha": 0.6, "stacked": True}], ids=str)
@pytest.mark.parametrize("before", [0, 5, 35])
def test_a_restored_buffer_continues_exactly(settings: dict[str, Any], before: int) -> None:
    stacks = stacks_of(random_frames(60))
    batch = {"obs": stacks[:-1], "next_obs": stacks[1:], "reward": np.arange(59.0)}

    def part(begin: int, end: int) -> Batch:
        return {name: column[begin:end] for name, column in batch.items()}

    original, restored = Replay(20, seed=1, **settings), Replay(20, seed=2, **settings)
    original.insert(part(0, before))
    if before and "alpha" in settings:
        original.update(original.sample(4)["index"], np.arange(4.0))
    restored.restore(original.state())
    for replay in (original, restored):
        replay.insert(part(before, before + 10))
    for _ in range(3):
        actual, expected = restored.sample(16), original.sample(16)
        assert actual.keys() == expected.keys()
        for name in actual:
            np.testing.assert_array_equal(actual[name], expected[name])
    assert (restored.inserted, restored.evicted) == (original.inserted, original.evicted)


def test_a_state_is_not_changed_by_later_inserts() -> None:
    replay = Replay(4)
    replay.insert(rows(0, 4))
    state = replay.state()
    replay.insert(rows(4, 4))
    assert state["storage"]["arrays"]["reward"].tolist() == [0, 1, 2, 3]


def test_a_state_of_another_capacity_is_refused() -> None:
    replay = Replay(8)
    replay.insert(rows(0, 8))
    with pytest.raises(ConfigError, match="capacity of 8, and this one has 4"):
        Replay(4).restore(replay.state())


@given(st.integers(4, 40), st.lists(st.integers(0, 25), min_size=1, max_size=8), st.integers(0, 2**32 - 1))
def test_frames_stored_once_give_the_same_samples(capacity: int, sizes: list[int], seed: int) -> None:
    """A buffer of frames evicts rows earlier if it has no room for their frames, but not with as few rows as here."""
    random = np.random.default_rng(seed)
    plain, frames = Replay(capacity), Replay(capacity, stacked=True)
    for number, size in enumerate(sizes):
        stacks = stacks_of(random_frames(size + 1, seed=number + 1))
        batch = {"obs": stacks[:-1], "next_obs": stacks[1:], "action": random.integers(0, 4, size)}
        plain.insert(batch)
        frames.insert(batch)
    if not len(frames):
        return
    assert len(frames) == len(plain), "there is room for all frames"
    expected, actual = plain.sample(100), frames.sample(100)
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])


def test_memory_for_one_frame_per_row() -> None:
    replay, num = Replay(3000, stacked=True), 6000
    stacks = stacks_of(random_frames(num + 1), size=4)
    for begin in range(0, num, 100):
        replay.insert({"obs": stacks[begin : begin + 100], "next_obs": stacks[begin + 1 : begin + 101]})
    assert len(replay) == 3000
    assert isinstance(replay.storage, FrameStorage)
    assert replay.storage.frames.next == num + 1, "each frame is stored once"
    assert len(replay.storage.frames.frames) < 1.8 * 3000


def test_rows_are_evicted_with_their_frames() -> None:
    """All frames are different: two for every row, more than there is room for."""
    replay = Replay(4000, stacked=True, alpha=1.0)
    images = random_frames(16_000).reshape(8000, 1, 2, -1)
    for begin in range(0, 8000, 50):
        replay.insert({"obs": images[begin : begin + 50, :, 0], "next_obs": images[begin : begin + 50, :, 1]})
    assert 2000 < len(replay) < 3800
    assert replay.inserted == len(replay) + replay.evicted
    batch = replay.sample(500)
    np.testing.assert_array_equal(batch["obs"], images[batch["index"], :, 0])
    np.testing.assert_array_equal(batch["next_obs"], images[batch["index"], :, 1])
    assert batch["index"].min() >= replay.first


def test_an_empty_buffer_cannot_be_sampled() -> None:
    with pytest.raises(ReplayEmpty, match="Insert rows first"):
        Replay(5).sample(1)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"obs": np.zeros((2, 3))}, r"has the columns \['obs', 'reward'\], but the batch has \['obs'\]"),
        ({"obs": np.zeros((2, 4)), "reward": np.zeros(2)}, r"rows of 'obs' of shape \(3,\).*shape \(4,\)"),
        (
            {"obs": np.zeros((2, 3), np.float32), "reward": np.zeros(2)},
            "type float64, but the batch has .* type float32",
        ),
        ({"obs": np.zeros((2, 3)), "reward": np.zeros(3)}, r"the same length, not \[2, 3\]"),
    ],
)
def test_rows_that_do_not_fit_are_refused(batch: Batch, message: str) -> None:
    replay = Replay(5)
    replay.insert({"obs": np.ones((2, 3)), "reward": np.ones(2)})
    with pytest.raises(ConfigError, match=message):
        replay.insert(batch)
    assert replay.sample(20)["obs"].min() == 1, "nothing has changed"


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="capacity must be a whole number"):
        Replay(0)
    with pytest.raises(ConfigError, match="alpha must be a number from 0 to 1, not 2"):
        Replay(1, alpha=2)
    with pytest.raises(ConfigError, match="has no priorities"):
        Replay(1).update(np.zeros(1, int), np.ones(1))
    with pytest.raises(ConfigError, match=r"'obs' is of shape \(2, 3\)"):
        Replay(5, stacked=True).insert({"obs": np.zeros((2, 3))})
    with pytest.raises(ConfigError, match="a mapping of"):
        Replay(5, stacked=True).insert({"obs": {"a": np.zeros((2, 3, 4))}})


def test_beta_changes_with_the_rows_inserted() -> None:
    """α = 1 and priorities 1 and 4, so that of both rows together the weights are 1 and (1/4)^β."""

    def sampled_weight(replay: Replay) -> float:
        replay.update(
            np.arange(replay.first, replay.next), np.where(np.arange(replay.first, replay.next) % 2, 4.0, 1.0)
        )
        batch = replay.sample(1000)
        assert set(batch["index"] % 2) == {0, 1}
        assert (batch["weight"][batch["index"] % 2 == 0] == 1).all()
        return float(batch["weight"][batch["index"] % 2 == 1][0])

    schedule = LinearSchedule(0.4, 1.0, over=8)
    replay = Replay(2, alpha=1.0, beta=schedule)
    replay.insert(rows(0, 2))
    assert sampled_weight(replay) == pytest.approx(0.25 ** (0.4 + 0.6 * 2 / 8), rel=1e-5)
    replay.insert(rows(2, 4))
    assert sampled_weight(replay) == pytest.approx(0.25 ** (0.4 + 0.6 * 6 / 8), rel=1e-5), "evicted rows count too"
    restored = Replay(2, seed=99, alpha=1.0, beta=schedule)
    restored.restore(replay.state())
    assert sampled_weight(restored) == pytest.approx(0.25**0.85, rel=1e-5)
    np.testing.assert_array_equal(restored.sample(9)["weight"], replay.sample(9)["weight"])
    replay.insert(rows(6, 20))
    assert sampled_weight(replay) == pytest.approx(0.25, rel=1e-5), "the final value stays"
