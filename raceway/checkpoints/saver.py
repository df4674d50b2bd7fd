"""When a run is saved, and what becomes of it if that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.errors import ActorError, ConfigError

_log = logging.getLogger(__name__)

LONG = 2.0
"""Seconds of an iteration after which it is saved: the next may be given up when a signal comes; see `StopSignals`."""
START = 4.0
"""Seconds that the first one may take besides, as workers have to start."""
SHARE = 0.02
"""Of the time, which saving for that reason takes at most."""


class Saver:
    """Saves a run after so many steps of environments, after so many seconds, and after every long iteration.

    Args:
        checkpoints: where.
        every: steps of environments between two; None for no such rule.
        seconds: between two; 0 for no such rule.
        clock: that these are counted by.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int | None, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.checkpoints, self.every, self.seconds, self._clock = checkpoints, every, seconds, clock
        self.last: Checkpoint | None = None
        self.spent: float | None = None
        """Seconds that the last one took, until somebody has read it."""
        self._saved_steps: int | None = None
        self._tried_steps, self._tried_at = 0, clock()
        self._cost, self._asked_at = 0.0, self._tried_at + START
        self._failing = False

    def start(self, last: Checkpoint | None, steps: int) -> None:
        """Count from now on, after a checkpoint that there is."""
        self.last, self._saved_steps = last, steps
        self._tried_steps, self._tried_at = steps, self._clock()
        self._asked_at = self._tried_at + START

    def due(self, steps: int) -> bool:
        """Whether it is time; asked once after every iteration."""
        now = self._clock()
        took, since = now - self._asked_at, now - self._tried_at
        self._asked_at = now
        if self.every is not None and steps // self.every > self._tried_steps // self.every:
            return True
        return (0 < self.seconds <= since) or (took >= LONG and self._cost <= SHARE * since)

    def save(self, state: Callable[[], Any], about: Mapping[str, Any]) -> Checkpoint | None:
        """Save what a function returns. If that cannot be done now, it is said once, and tried again when due."""
        if self.last is not None and about["steps"] == self._saved_steps and not self._failing:
            return self.last
        begin = self._clock()
        try:
            found = state()
        except ActorError as error:  # a worker died while it was asked
            self._failed(error)
        else:
            self._write(found, about)
        self._tried_steps, self._tried_at = about["steps"], self._clock()
        self.spent = self._cost = self._tried_at - begin
        self._asked_at = max(self._asked_at, self._tried_at)
        return None if self._failing else self.last

    def _write(self, state: Any, about: Mapping[str, Any]) -> None:
        try:
            self.last = self.checkpoints.save(state, about)
        except (OSError, ConfigError) as error:  # no room; or something that is no data
            self._failed(error)
            return
        if self._failing:
            _log.warning("checkpoints are saved again")
        self._failing, self._saved_steps = False, about["steps"]

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            _log.warning("no checkpoint could be saved: %s. Training goes on, and so do later attempts", error)
        self._failing = True

    def seconds_spent(self) -> dict[str, float]:
        """Return how long the last one took, once, as a figure."""
        spent, self.spent = self.spent, None
        return {} if spent is None else {"time/save_seconds": spent}
