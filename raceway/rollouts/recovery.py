"""Recovery from environment failures: how they are logged, how environments are rebuilt, and how many are tolerated."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from raceway.envs import UNKNOWN_SLOT, Slots, SteppedSlots
from raceway.envs.env_vector import environment_error
from raceway.errors import ConfigError, EnvironmentFailed
from raceway.rl import Batch

_log = logging.getLogger(__name__)

Locate = Callable[[int], tuple[str, int]]
"""Returns the location of a slot as text, and the number of steps of its episode."""


class ItemLost(EnvironmentFailed):
    """An environment failed in a way that all steps collected for the current item must be dropped."""

    steps = 0
    """Number of steps of the episode that failed."""

    @classmethod
    def at(cls, problem: str, kind: str, slot: int, place: str, steps: int) -> ItemLost:
        """Return the error for a problem at a location."""
        lost = cls(problem, slot, place, kind)
        lost.steps = steps
        return lost


class FailureLog:
    """Logs environment failures: the first of its kind in full, then the 10th, the 100th and so on, in one line."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        """Failures by kind."""

    def add(self, error: EnvironmentFailed, place: str, budget: str) -> None:
        """Count a failure that is tolerated, and log it if it is due."""
        self._counts[error.kind] += 1
        count = self._counts[error.kind]
        if count == 1:
            text = "%s\n  in %s\n  The environment is rebuilt: %s\n  More are counted, and the 10th, 100th ... logged"
            _log.warning(text, error.problem, place, budget, exc_info=_root_cause(error))
        elif count == 10 ** (len(str(count)) - 1):
            _log.warning("%s, for the %dth time, in %s", error.problem, count, place)


class Recovery:
    """Rebuilds environments that fail, as long as episodes end between failures.

    Args:
        max_failures: consecutive failures that are tolerated with no episode ended in between; with 0, the first is
            raised.
        make_slots: creates all environments of a shard, if single ones cannot be rebuilt; called with the number of
            earlier calls.
        num_made: the number of calls before this object was created.
        log: logs the failures; shards that share a log count them together.
    """

    def __init__(
        self,
        max_failures: int = 0,
        make_slots: Callable[[int], Slots] | None = None,
        num_made: int = 0,
        log: FailureLog | None = None,
    ) -> None:
        self.max_failures, self._make_slots, self._failure_log = max_failures, make_slots, log or FailureLog()
        self.prepare: Callable[[Slots], None] | None = None
        """Called with rebuilt environments before they are stepped."""
        self.consecutive_failures = 0
        """Failures since the last episode ended."""
        self.rebuilt: set[int] = set()
        """Slots whose environments were just rebuilt: their state depends on nothing before."""
        self._num_made = num_made
        self._lost_steps: list[int] = []

    def record_failure(self, error: EnvironmentFailed, place: str, steps: int = 0) -> None:
        """Count a failure and the steps it cost, and log it; raise it if the failure budget is exceeded."""
        self.consecutive_failures += 1
        budget = (
            f"failure {self.consecutive_failures} in a row with no episode ended in between "
            f"(max_env_failures is {self.max_failures})"
        )
        if self.consecutive_failures > self.max_failures:
            where = place if self.consecutive_failures == 1 else f"{place}\n  {budget}"
            cause = error.__cause__ if isinstance(error, ItemLost) else error
            raise self._final_failure(error, where) from cause
        self._lost_steps.append(steps)
        self._failure_log.add(error, place, budget)

    def _final_failure(self, error: EnvironmentFailed, place: str) -> EnvironmentFailed:
        """Return the error that ends the run. The failures before it, whose batch is never completed, count too."""
        return EnvironmentFailed(error.problem, error.slot, place, error.kind, len(self._lost_steps) + 1)

    def take_lost_episodes(self) -> Batch:
        """Return the column `episode_lost`: the steps of each episode dropped since the last call."""
        steps, self._lost_steps = self._lost_steps, []
        return {"episode_lost": np.array(steps, np.int64)}

    def recover(
        self,
        error: EnvironmentFailed,
        slots: list[int],
        envs: Slots,
        locate: Locate,
        proceed: Callable[[list[int]], Any],
    ) -> list[int]:
        """Rebuild the environment that failed, proceed with the slots after it, and return all that failed.

        Args:
            error: the failure.
            slots: the slots, in the order in which they were being stepped or reset.
            envs: the environments.
            locate: returns the location of a slot.
            proceed: steps or resets the remaining slots.

        Raises:
            ItemLost: if single environments cannot be rebuilt.
        """
        failed: list[int] = []
        while True:
            place, steps = locate(error.slot)
            if not isinstance(envs, SteppedSlots):
                raise ItemLost.at(error.problem, error.kind, error.slot, place, steps) from error
            self.record_failure(error, place, steps)
            self._rebuild(envs, error.slot, locate)
            failed.append(error.slot)
            slots = slots[slots.index(error.slot) + 1 :]
            try:
                if slots:
                    proceed(slots)
                return failed
            except EnvironmentFailed as another:
                error = another

    def _rebuild(self, envs: SteppedSlots, slot: int, locate: Locate) -> None:
        while True:
            try:
                envs.rebuild(slot)
                self.rebuilt.add(slot)
                break
            except EnvironmentFailed as error:
                self.record_failure(error, locate(slot)[0])
        if self.prepare is not None:
            self.prepare(envs)

    def rebuild_for_retry(self, envs: Slots, lost: ItemLost, locate: Locate) -> Slots:
        """Return environments in which an item can be collected from its beginning."""
        if isinstance(envs, SteppedSlots):
            self.record_failure(lost, lost.place, lost.steps)
            # The others only need a reset, unless their state depends on the lost steps.
            for slot in [lost.slot] if envs.repeats_from_seed else range(envs.num):
                self._rebuild(envs, slot, locate)
            return envs
        if self._make_slots is None:
            raise self._final_failure(lost, lost.place) from lost.__cause__
        self.record_failure(lost, lost.place, lost.steps)
        envs.close()
        return self.make_slots(locate)

    def make_slots(self, locate: Locate) -> Slots:
        """Create all environments, and retry after failures."""
        assert self._make_slots is not None
        while True:
            self._num_made += 1
            try:
                envs = self._make_slots(self._num_made - 1)
                break
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                failure = environment_error(UNKNOWN_SLOT, "construction", error)
                failure.__cause__ = error
                self.record_failure(failure, locate(UNKNOWN_SLOT)[0])
        if self.prepare is not None:
            self.prepare(envs)
        return envs


def _root_cause(error: BaseException | None) -> BaseException | None:
    """Return the exception that an environment raised."""
    while isinstance(error, EnvironmentFailed):
        error = error.__cause__
    return error
