"""When a run is saved, and what becomes of it if that fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from raceway.errors import ActorError, ConfigError
from raceway.runs.checkpoints import Checkpoint, Checkpoints

_log = logging.getLogger(__name__)


class Saver:
    """Saves a run after so many steps of environments, and after so many seconds.

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
        self._failing = False

    def start(self, last: Checkpoint | None, steps: int) -> None:
        """Count from now on, after a checkpoint that there is."""
        self.last, self._saved_steps = last, steps
        self._tried_steps, self._tried_at = steps, self._clock()

    def due(self, steps: int) -> bool:
        """Whether it is time."""
        if self.every is not None and steps // self.every > self._tried_steps // self.every:
            return True
        return bool(self.seconds) and self._clock() - self._tried_at >= self.seconds

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
        self.spent = self._tried_at - begin
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
