"""Vectors of environments whose observations also have the last action and its reward; see `raceway.rl.last_step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from raceway.envs.env_vector import Score, Slots, SteppedSlots
from raceway.rl.last_step import LastStep
from raceway.rl.spaces import Tree

Array = np.ndarray


class SteppedLastStepSlots(SteppedSlots):
    """Ordinary environments, stepped one after the other, with the last action and reward in observations."""

    def __init__(self, make: Callable[[], gym.Env], num: int) -> None:
        super().__init__(make, num)
        self._last = LastStep(self.observation_space, self.action_space)
        self.observation_space = self._last.space

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        try:
            super().reset(slots, seeds, self._last.env_part(obs))
        finally:  # if one fails, those before it have begun
            self._last.clear(obs, list(slots))

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> None:
        try:
            super().step(actions, active, self._last.env_part(obs), reward, ended)
        finally:  # if one fails, those before it have stepped
            self._last.write(obs, _rows(active, self.num), actions, reward)


class LastStepSlots:
    """Any other vector of environments, with the last action and reward in observations."""

    def __init__(self, slots: Slots) -> None:
        self.slots, self.num = slots, slots.num
        self._last = LastStep(slots.observation_space, slots.action_space)
        self.observation_space: spaces.Space = self._last.space
        self.action_space = slots.action_space
        self.repeats_from_seed, self.replayable = slots.repeats_from_seed, slots.replayable

    @property
    def scores(self) -> list[Score] | None:
        return self.slots.scores

    @scores.setter
    def scores(self, scores: list[Score] | None) -> None:
        self.slots.scores = scores

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        self.slots.reset(slots, seeds, self._last.env_part(obs))
        self._last.clear(obs, list(slots))

    def started_from_seed(self, slot: int) -> bool:
        return self.slots.started_from_seed(slot)

    def step(self, actions: Array, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Array | None:
        stepped = self.slots.step(actions, active, self._last.env_part(obs), reward, ended)
        self._last.write(obs, _rows(active, self.num), actions, reward)
        if stepped is not None:
            self._last.clear(obs, ~stepped)  # these were only reset: an episode begins
        return stepped

    def final_info(self, slot: int) -> Any:
        return self.slots.final_info(slot)

    def close(self) -> None:
        self.slots.close()


def _rows(active: Sequence[int], num: int) -> Any:
    """Return the active slots as an index; that of all is a slice, which is faster."""
    return slice(None) if len(active) == num else list(active)
