"""Environments that go wrong: how that is told, how they are made again, and how often that is borne."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np

from raceway.envs import SOME_SLOT, Slots, SteppedSlots
from raceway.envs.slots import failed
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rl import Batch

_log = logging.getLogger(__name__)

Place = Callable[[int], tuple[str, int]]
"""Of a slot: where it is, as text, and how many steps of its episode there were."""


class ItemLost(EnvironmentFailed):
    """All that was played for an item is to be dropped, because of an environment."""

    steps = 0
    """That its episode had."""

    @classmethod
    def at(cls, problem: str, slot: int, place: str, steps: int) -> ItemLost:
        """Return the error for that."""
        lost = cls(problem, slot, place)
        lost.steps = steps
        return lost


class Recovery:
    """What becomes of environments that fail: they are made again, as long as episodes end between failures.

    Args:
        most: failures that are borne with no episode ended in between; with 0, the first one is raised.
        make: makes all environments of a shard, for where single ones cannot be; it is told how often it was done.
        num_made: how often that was before.
    """

    def __init__(self, most: int = 0, make: Callable[[int], Slots] | None = None, num_made: int = 0) -> None:
        self.most, self._make = most, make
        self.prepare: Callable[[Slots], None] | None = None
        """What is done to environments that were made again, before they are played."""
        self.in_a_row = 0
        """Failures since an episode has ended."""
        self.anew: set[int] = set()
        """Slots whose environments were just made again: nothing that they do depends on what was before."""
        self._num_made = num_made
        self._lost: list[int] = []

    def bear(self, error: EnvironmentFailed, place: str, steps: int = 0) -> None:
        """Note a failure that cost so many steps, and log it; raise it if it is one too many."""
        self.in_a_row += 1
        told = f"failure {self.in_a_row} in a row with no episode ended in between (max_env_failures is {self.most})"
        if self.in_a_row > self.most:
            where = place if self.in_a_row == 1 else f"{place}\n  {told}"
            cause = error.__cause__ if isinstance(error, ItemLost) else error
            raise EnvironmentFailed(error.problem, error.slot, where) from cause
        self._lost.append(steps)
        text = "%s\n  in %s\n  The environment is made again: %s"
        _log.warning(text, error.problem, place, told, exc_info=_original(error))

    def taken(self) -> Batch:
        """Return a column of the failures since it was last asked for: the steps of each episode that was dropped."""
        lost, self._lost = self._lost, []
        return {"episode_lost": np.array(lost, np.int64)}

    def without(
        self, error: EnvironmentFailed, slots: list[int], of: Slots, place: Place, go_on: Callable[[list[int]], Any]
    ) -> list[int]:
        """Go on with the slots after one that failed, and return all that did. Their environments are made again.

        Raises:
            ItemLost: if single environments cannot be.
        """
        gone: list[int] = []
        while True:
            where, steps = place(error.slot)
            if not isinstance(of, SteppedSlots):
                raise ItemLost.at(error.problem, error.slot, where, steps) from error
            self.bear(error, where, steps)
            self._rebuild(of, error.slot, place)
            gone.append(error.slot)
            slots = slots[slots.index(error.slot) + 1 :]
            try:
                if slots:
                    go_on(slots)
                return gone
            except EnvironmentFailed as another:
                error = another

    def _rebuild(self, slots: SteppedSlots, slot: int, place: Place) -> None:
        while True:
            try:
                slots.rebuild(slot)
                self.anew.add(slot)
                break
            except EnvironmentFailed as error:
                self.bear(error, place(slot)[0])
        if self.prepare is not None:
            self.prepare(slots)

    def remade(self, slots: Slots, lost: ItemLost, place: Place) -> Slots:
        """Return environments in which an item can be played from the beginning."""
        if isinstance(slots, SteppedSlots):
            self.bear(lost, lost.place, lost.steps)
            # Others need no more than a seed, unless they depend on what was played and is lost.
            for slot in [lost.slot] if slots.repeats else range(slots.num):
                self._rebuild(slots, slot, place)
            return slots
        if self._make is None:
            raise EnvironmentFailed(lost.problem, lost.slot, lost.place) from lost.__cause__
        self.bear(lost, lost.place, lost.steps)
        slots.close()
        return self.make(place)

    def make(self, place: Place) -> Slots:
        """Make all environments, as often as it takes."""
        assert self._make is not None
        while True:
            self._num_made += 1
            try:
                made = self._make(self._num_made - 1)
                break
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                failure = failed(SOME_SLOT, "making", error)
                failure.__cause__ = error
                self.bear(failure, place(SOME_SLOT)[0])
        if self.prepare is not None:
            self.prepare(made)
        return made


def _original(error: BaseException | None) -> BaseException | None:
    """Return what an environment raised."""
    while isinstance(error, EnvironmentFailed):
        error = error.__cause__
    return error
