"""Hindsight: which goals replace the original ones, and what is computed again for them."""

from typing import Any

import numpy as np
import pytest

from raceway.errors import ConfigError
from raceway.replay import Hindsight, Replay
from raceway.rl import Batch

GAMMA = 0.5
ORIGINAL = -1.0


class SameGoal:
    """The reward is 0, and the episode terminates, where the achieved goal is the desired one; else the reward is -1.

    Args:
        terminates: whether it says which steps terminate.
    """

    def __init__(self, terminates: bool = True) -> None:
        self.terminates = terminates

    def rewards(self, achieved: Any, desired: Any) -> np.ndarray:
        return (achieved == desired).all(-1) - 1.0

    def terminated(self, achieved: Any, desired: Any) -> np.ndarray | None:
        return (achieved == desired).all(-1) if self.terminates else None


def episode(first: int, length: int) -> Batch:
    """Return the transitions of an episode. The step with the number n achieves the goal n, from the goal n - 0.5."""
    numbers = np.arange(first, first + length, dtype=np.float32)[:, None]
    goal = np.full_like(numbers, ORIGINAL)
    return {
        "obs": {"achieved_goal": numbers - 0.5, "desired_goal": goal, "observation": numbers},
        "next_obs": {"achieved_goal": numbers, "desired_goal": goal.copy(), "observation": numbers + 0.5},
        "action": np.zeros(length, np.int64),
        "reward": np.full(length, -1, np.float32),
        "discount": np.full(length, GAMMA, np.float32),
        "steps_before": np.arange(length),
        "steps_after": np.arange(length)[::-1].copy(),
    }


def sampled(strategy: str, lengths: list[int], capacity: int = 100, num: int = 4000, **options: Any) -> Batch:
    """Return a sample from a buffer of episodes of these lengths."""
    functions = SameGoal(options.pop("terminates", True))
    replay = Replay(capacity, seed=0, hindsight=Hindsight(functions, GAMMA, strategy=strategy, **options))
    first = 0
    for length in lengths:
        replay.insert(episode(first, length))
        first += length
    return replay.sample(num)


def goals_by_step(batch: Batch) -> dict[int, list[float]]:
    """Return the new goals that each row was sampled with, by its number."""
    goals = batch["obs"]["desired_goal"][:, 0]
    pairs = [(int(n), float(goal)) for n, goal in zip(batch["index"], goals, strict=True) if goal != ORIGINAL]
    return {number: sorted({goal for other, goal in pairs if other == number}) for number, _ in pairs}


@pytest.mark.parametrize(
    ("strategy", "goals"),
    [
        # Two episodes, of the steps 0 to 2 and 3 to 4. The goal of a step is that after it, the last one's included.
        ("final", {0: [2], 1: [2], 2: [2], 3: [4], 4: [4]}),
        ("future", {0: [0, 1, 2], 1: [1, 2], 2: [2], 3: [3, 4], 4: [4]}),
        ("episode", {0: [0, 1, 2], 1: [0, 1, 2], 2: [0, 1, 2], 3: [3, 4], 4: [3, 4]}),
    ],
)
def test_new_goals_by_hand(strategy: str, goals: dict[int, list[float]]) -> None:
    assert goals_by_step(sampled(strategy, [3, 2])) == goals


@pytest.mark.parametrize("strategy", ["final", "future", "episode"])
def test_goals_are_of_the_same_episode_over_the_seam_of_the_ring(strategy: str) -> None:
    # 5 episodes of 3 steps in a ring of 10: the rows 5 to 14 remain, and row 5 is the last of the episode 3 to 5.
    batch = sampled(strategy, [3] * 5, capacity=10)
    goals = goals_by_step(batch)
    assert set(goals) == set(range(5, 15))
    for number, new in goals.items():
        first = max(number - number % 3, 5)  # of its episode, and not evicted
        last = number - number % 3 + 2
        expected = {"final": [last], "future": range(number, last + 1), "episode": range(first, last + 1)}[strategy]
        assert new == list(expected), number


def test_future_goals_are_equally_likely() -> None:
    batch = sampled("future", [4], num=20_000)
    goals = batch["obs"]["desired_goal"][batch["index"] == 1, 0]
    counts = np.bincount(goals[goals != ORIGINAL].astype(int), minlength=4)
    assert counts[0] == 0
    np.testing.assert_allclose(counts[1:] / counts.sum(), 1 / 3, atol=0.03)


@pytest.mark.parametrize(("num_goals", "share"), [(1, 1 / 2), (4, 4 / 5), (8, 8 / 9)])
def test_the_share_of_new_goals(num_goals: int, share: float) -> None:
    batch = sampled("future", [50], num=20_000, num_goals=num_goals)
    assert (batch["obs"]["desired_goal"] != ORIGINAL).mean() == pytest.approx(share, abs=0.01)


def test_rewards_and_ends_are_computed_again() -> None:
    batch = sampled("future", [3, 2])
    goals, achieved = batch["obs"]["desired_goal"][:, 0], batch["next_obs"]["achieved_goal"][:, 0]
    np.testing.assert_array_equal(batch["next_obs"]["desired_goal"], batch["obs"]["desired_goal"])
    np.testing.assert_array_equal(batch["reward"], np.where(goals == achieved, 0, -1))
    np.testing.assert_array_equal(batch["discount"], np.where(goals == achieved, 0, GAMMA))
    np.testing.assert_array_equal(achieved, batch["index"])  # and nothing else changes
    np.testing.assert_array_equal(batch["obs"]["achieved_goal"][:, 0], batch["index"] - 0.5)
    assert (batch["reward"].dtype, batch["discount"].dtype) == (np.float32, np.float32)
    assert {"steps_before", "steps_after"}.isdisjoint(batch)


def test_recorded_ends_remain_if_the_environment_does_not_compute_them() -> None:
    batch = sampled("future", [3, 2], terminates=False)
    assert (batch["reward"] == 0).any()
    assert (batch["discount"] == GAMMA).all()


def test_the_buffer_keeps_the_original_goals() -> None:
    replay = Replay(10, seed=0, hindsight=Hindsight(SameGoal(), GAMMA))
    replay.insert(episode(0, 5))
    for _ in range(20):
        replay.sample(16)
    for obs in ("obs", "next_obs"):
        assert (replay.storage.arrays[obs]["desired_goal"][:5] == ORIGINAL).all()
    assert (replay.storage.arrays["reward"][:5] == -1).all()


def test_a_restored_buffer_samples_the_same_goals() -> None:
    def make() -> Replay:
        return Replay(10, seed=0, hindsight=Hindsight(SameGoal(), GAMMA))

    replay, other = make(), make()
    for first in (0, 4, 8):
        replay.insert(episode(first, 4))
    replay.sample(7)
    other.restore(replay.state())
    for _ in range(3):
        expected, batch = replay.sample(16), other.sample(16)
        np.testing.assert_array_equal(batch["index"], expected["index"])
        np.testing.assert_array_equal(batch["obs"]["desired_goal"], expected["obs"]["desired_goal"])


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy for goals 'futur'. Did you mean 'future'"):
        Hindsight(SameGoal(), GAMMA, strategy="futur")
    with pytest.raises(ConfigError, match="number of goals must be a whole number from 1, not 0"):
        Hindsight(SameGoal(), GAMMA, num_goals=0)
