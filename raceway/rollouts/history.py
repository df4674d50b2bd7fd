"""Bringing environments back to where they were: open episodes are played again, from the seed, with the same actions.

Few simulators can say all that they are in, and none in a way that fits another version of itself. What was done to
them since they were seeded is data, and small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from raceway.envs import Slots
from raceway.rl.spaces import Tree

Array = np.ndarray

_MOST = 200_000  # steps: with more, playing them again would take longer than what was learnt in them is worth


class History:
    """What was done in every slot since the reset that its environment depends on alone.

    Steps are counted from when the environments were made, the same for all slots.
    """

    def __init__(self, num_slots: int) -> None:
        self.now = 0  # steps so far
        self._resets: list[list[tuple[int, int]]] = [[] for _ in range(num_slots)]  # the step and seed of each
        self._forgotten = 0  # the step before which none are known any more
        self._parts: list[tuple[int, Array, Array]] = []  # the first step, the actions, and which of them count, [T, B]

    def began(self, slot: int, row: int, seed: int, anew: bool) -> None:
        """Note a reset after so many steps of what is played now; `anew` if nothing that was before matters."""
        if anew:
            self._resets[slot].clear()
        self._resets[slot].append((self.now + row, seed))

    def played(self, actions: Array, counted: Array) -> None:
        """Note what was done, and whether it was, [T, B]. The arrays are kept."""
        self._parts.append((self.now, actions, counted))
        self.now += len(actions)
        if self.now - self._oldest > _MOST:
            self._forgotten = self.now
            self._parts.clear()
        while self._parts and self._parts[0][0] + len(self._parts[0][1]) <= self._oldest:
            self._parts.pop(0)

    @property
    def _oldest(self) -> int:
        """The first step that is still needed."""
        return min((resets[0][0] for resets in self._resets if resets), default=self.now)

    @property
    def whole(self) -> bool:
        """Whether all that is needed is there: of very long episodes it is not kept."""
        return self._oldest >= self._forgotten

    def state(self) -> Any:
        """Return it as data."""
        about = {"now": self.now, "first": self._oldest, "resets": self._resets}
        if not self._parts:
            return about
        needed = slice(self._oldest - self._parts[0][0], None)
        columns = {"actions": 1, "counted": 2}
        return about | {name: np.concatenate([one[at] for one in self._parts])[needed] for name, at in columns.items()}

    def restore(self, state: Any) -> None:
        """Hold that again."""
        self.now, self._parts = state["now"], []
        self._resets = [[(step, seed) for step, seed in resets] for resets in state["resets"]]
        if "actions" in state:
            self._parts = [(state["first"], np.array(state["actions"]), np.array(state["counted"]))]

    def replay(self, slots: Slots, bounded: Callable[[Array], Array], obs: Tree) -> None:
        """Bring fresh environments to where these were. What is seen there goes into the rows of `obs`."""
        reward, ended = np.zeros(slots.num, np.float32), np.zeros((2, slots.num), bool)
        due: dict[int, list[tuple[int, int]]] = {}
        for slot, resets in enumerate(self._resets):
            for step, seed in resets:
                due.setdefault(step, []).append((slot, seed))
        begun = np.zeros(slots.num, bool)
        for step, actions, counted in self._rows(min(due, default=self.now)):
            self._reset(slots, due.pop(step, []), obs, begun)
            active = np.flatnonzero(counted & begun).tolist()
            if active:
                slots.step(bounded(actions.copy()), active, obs, reward, ended)
        self._reset(slots, due.pop(self.now, []), obs, begun)
        if slots.scores is not None:
            slots.scores.clear()  # they were told when it was played

    def _rows(self, first: int) -> Iterator[tuple[int, Array, Array]]:
        for begin, actions, counted in self._parts:
            for place in range(max(first - begin, 0), len(actions)):
                yield begin + place, actions[place], counted[place]

    def _reset(self, slots: Slots, due: list[tuple[int, int]], obs: Tree, begun: Array) -> None:
        for slot, seed in due:
            slots.reset([slot], [seed], obs)
            begun[slot] = True
