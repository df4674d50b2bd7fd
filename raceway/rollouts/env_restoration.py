"""Restoring environments: open episodes are repeated in fresh environments, from their seeds, with the same actions.

Few simulators can export their whole state, and none in a form that another version could load. The seeds and
actions since the last reset are plain data, and small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from raceway.rl import row_of, tree_map
from raceway.rl.spaces import Tree

Array = np.ndarray

_MAX_STEPS = 200_000  # repeating longer episodes would cost more than their experience is worth


class ReplayedSlots(Protocol):
    """Environments in which logged steps can be repeated; see `Slots`."""

    num: int
    scores: list[Any] | None

    def reset(self, slots: Sequence[int], seeds: Sequence[int], obs: Tree) -> None:
        """Start an episode in each of these slots."""

    def step(self, actions: Any, active: Sequence[int], obs: Tree, reward: Array, ended: Array) -> Any:
        """Step the active slots."""


class EpisodeLog:
    """The resets and actions of every slot, since the last reset on which its environment depends.

    Steps are counted from when the environments were created, the same for all slots.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_steps = 0
        self._resets: list[list[tuple[int, int]]] = [[] for _ in range(num_slots)]  # the step and seed of each
        self._discarded_before = 0  # the step before which actions were discarded
        self._chunks: list[tuple[int, Tree, Array]] = []  # the first step, actions [T, B], and which are valid [T, B]

    def log_reset(self, slot: int, row: int, seed: int, from_seed: bool) -> None:
        """Log a reset.

        Args:
            slot: the slot that was reset.
            row: the number of steps since the last call of `log_steps`.
            seed: the seed of the reset.
            from_seed: whether the environment depends on nothing before this reset.
        """
        if from_seed:
            self._resets[slot].clear()
        self._resets[slot].append((self.num_steps + row, seed))

    def log_steps(self, actions: Tree, valid: Array) -> None:
        """Log actions, and which of them were taken, [T, B]. The arrays are kept, not copied.

        Actions may be a tree of arrays, such as those of several agents.
        """
        self._chunks.append((self.num_steps, actions, valid))
        self.num_steps += len(valid)
        if self.num_steps - self._first_needed > _MAX_STEPS:
            self._discarded_before = self.num_steps
            self._chunks.clear()
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][2]) <= self._first_needed:
            self._chunks.pop(0)

    @property
    def _first_needed(self) -> int:
        """The first step that is needed to restore the environments."""
        return min((resets[0][0] for resets in self._resets if resets), default=self.num_steps)

    @property
    def complete(self) -> bool:
        """Whether the environments can be restored: actions of very long episodes are discarded."""
        return self._first_needed >= self._discarded_before

    def state(self) -> Any:
        """Return the log as plain data."""
        state = {"num_steps": self.num_steps, "first_step": self._first_needed, "resets": self._resets}
        if not self._chunks:
            return state
        needed = slice(self._first_needed - self._chunks[0][0], None)
        _, actions, valid = zip(*self._chunks, strict=True)
        join = lambda *parts: np.concatenate(parts)[needed]  # noqa: E731
        return state | {"actions": tree_map(join, *actions), "valid": join(*valid)}

    def restore(self, state: Any) -> None:
        """Restore the log."""
        self.num_steps, self._chunks = state["num_steps"], []
        self._resets = [[(step, seed) for step, seed in resets] for resets in state["resets"]]
        if "actions" in state:
            self._chunks = [(state["first_step"], tree_map(np.array, state["actions"]), np.array(state["valid"]))]

    def restore_envs(self, slots: ReplayedSlots, clip: Callable[[Any], Any], obs: Tree) -> None:
        """Bring fresh environments to the state of the logged ones.

        Args:
            slots: the fresh environments.
            clip: turns logged actions into those that environments get.
            obs: receives the current observations, [B, ...].
        """
        reward, ended = np.zeros(slots.num, np.float32), np.zeros((2, slots.num), bool)
        resets_at: dict[int, list[tuple[int, int]]] = {}
        for slot, resets in enumerate(self._resets):
            for step, seed in resets:
                resets_at.setdefault(step, []).append((slot, seed))
        started = np.zeros(slots.num, bool)
        for step, actions, valid in self._steps_from(min(resets_at, default=self.num_steps)):
            self._reset(slots, resets_at.pop(step, []), obs, started)
            active = np.flatnonzero(valid & started).tolist()
            if active:
                slots.step(clip(tree_map(np.copy, actions)), active, obs, reward, ended)
        self._reset(slots, resets_at.pop(self.num_steps, []), obs, started)
        if slots.scores is not None:
            slots.scores.clear()  # they were reported when the steps were first taken

    def _steps_from(self, first: int) -> Iterator[tuple[int, Tree, Array]]:
        for begin, actions, valid in self._chunks:
            for index in range(max(first - begin, 0), len(valid)):
                yield begin + index, row_of(actions, index), valid[index]

    def _reset(self, slots: ReplayedSlots, resets: list[tuple[int, int]], obs: Tree, started: Array) -> None:
        for slot, seed in resets:
            slots.reset([slot], [seed], obs)
            started[slot] = True
