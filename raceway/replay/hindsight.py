"""Hindsight experience replay: sampled transitions get goals that their episode achieved.

Paper: Andrychowicz et al. 2017, https://arxiv.org/abs/1707.01495. Goals are replaced when a batch is sampled, as in
OpenAI Baselines, so that a transition gets another goal every time and the buffer holds it once.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from raceway.checks import check_choice, check_int
from raceway.replay.storage import ReplayStorage
from raceway.rl.batch import Batch

Array = np.ndarray

STRATEGIES = ("future", "final", "episode")


class GoalFunctions(Protocol):
    """Computes what steps would have led to with other goals; see `raceway.envs.goals`."""

    def rewards(self, achieved: Any, desired: Any) -> Array:
        """Return the rewards, [N]."""

    def terminated(self, achieved: Any, desired: Any) -> Array | None:
        """Return whether the steps end the episode, [N], or None if that does not depend on the goal."""


class Hindsight:
    """Replaces the goals of a share k/(k+1) of sampled rows, which are one-step transitions of whole episodes.

    Args:
        functions: computes rewards and ends of episodes for the new goals.
        gamma: the discount γ.
        num_goals: the number k of new goals for each original one.
        strategy: where a new goal comes from: what a random later step of the episode achieved or the step itself
            (`future`), what its last step achieved (`final`), or any of its steps (`episode`).
    """

    def __init__(self, functions: GoalFunctions, gamma: float, num_goals: int = 4, strategy: str = "future") -> None:
        self.functions, self.gamma = functions, gamma
        self.share = 1 - 1 / (check_int("number of goals", num_goals) + 1)
        self.strategy = check_choice("strategy for goals", strategy, STRATEGIES)

    def relabel(
        self, batch: Batch, numbers: Array, storage: ReplayStorage, first: int, random: np.random.Generator
    ) -> Batch:
        """Return sampled rows with new goals, and without the columns `steps_before` and `steps_after`.

        Args:
            batch: the rows, which are changed.
            numbers: their numbers in the buffer, [N].
            storage: the buffer's storage.
            first: the number of the oldest row in it.
            random: the generator of the buffer.
        """
        before, after = batch.pop("steps_before"), batch.pop("steps_after")
        rows = np.flatnonzero(random.random(len(numbers)) < self.share)
        if not len(rows):
            return batch
        numbers, before, after = numbers[rows], before[rows], after[rows]
        # Episodes are inserted whole: later rows of an episode are always there, and only earlier ones may be evicted.
        if self.strategy == "final":
            steps = numbers + after
        elif self.strategy == "future":
            steps = random.integers(numbers, numbers + after, endpoint=True)
        else:
            steps = random.integers(np.maximum(numbers - before, first), numbers + after, endpoint=True)
        goals = storage.arrays["next_obs"]["achieved_goal"].take(steps % storage.capacity, axis=0)
        achieved = batch["next_obs"]["achieved_goal"][rows]
        batch["obs"]["desired_goal"][rows] = batch["next_obs"]["desired_goal"][rows] = goals
        batch["reward"][rows] = self.functions.rewards(achieved, goals)
        terminated = self.functions.terminated(achieved, goals)
        if terminated is not None:
            batch["discount"][rows] = self.gamma * ~terminated
        return batch
