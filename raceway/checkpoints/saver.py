"""When a run is saved, and what happens if saving fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from raceway.checkpoints.store import Checkpoint, Checkpoints
from raceway.errors import ActorError, ConfigError

_log = logging.getLogger(__name__)

LONG_ITERATION_SECONDS = 2.0
"""An iteration of at least this length is followed by a save: a signal may abandon the next one; see `StopSignals`."""
STARTUP_SECONDS = 4.0
"""Extra time for the first iteration, in which workers start."""
MAX_SAVE_SHARE = 0.02
"""Largest share of the time that saving after long iterations may take."""


class Saver:
    """Saves a run every n environment steps (or updates), every n seconds, and after every long iteration.

    Args:
        checkpoints: where checkpoints are saved.
        every: environment steps, or updates, between two saves; None disables this rule.
        seconds: seconds between two saves; 0 disables this rule.
        clock: the clock that `seconds` refers to.
    """

    def __init__(
        self, checkpoints: Checkpoints, every: int | None, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.checkpoints, self.every, self.seconds, self._clock = checkpoints, every, seconds, clock
        self.last: Checkpoint | None = None
        self._unreported_seconds: float | None = None
        self._saved_steps: int | None = None
        self._attempt_steps, self._attempt_time = 0, clock()
        self._cost, self._iteration_start = 0.0, self._attempt_time + STARTUP_SECONDS
        self._failing = False

    def start(self, last: Checkpoint | None, steps: int) -> None:
        """Count steps and seconds from now, after an existing checkpoint."""
        self.last, self._saved_steps = last, steps
        self._attempt_steps, self._attempt_time = steps, self._clock()
        self._iteration_start = self._attempt_time + STARTUP_SECONDS

    def due(self, steps: int) -> bool:
        """Whether a save is due. Call it once after every iteration: it measures how long the iteration took."""
        now = self._clock()
        iteration_seconds, since_attempt = now - self._iteration_start, now - self._attempt_time
        self._iteration_start = now
        if self.every is not None and steps // self.every > self._attempt_steps // self.every:
            return True
        is_long = iteration_seconds >= LONG_ITERATION_SECONDS
        return (0 < self.seconds <= since_attempt) or (is_long and self._cost <= MAX_SAVE_SHARE * since_attempt)

    def save(self, state: Callable[[], Any], about: Mapping[str, Any]) -> Checkpoint | None:
        """Save the state that a function returns. A failure is logged once, and saving is retried when it is due."""
        if self.last is not None and about["steps"] == self._saved_steps and not self._failing:
            return self.last
        start = self._clock()
        try:
            value = state()
        except ActorError as error:  # a worker died while its state was read
            self._handle_failure(error)
        else:
            self._write(value, about)
        self._attempt_steps, self._attempt_time = about["steps"], self._clock()
        self._unreported_seconds = self._cost = self._attempt_time - start
        self._iteration_start = max(self._iteration_start, self._attempt_time)
        return None if self._failing else self.last

    def _write(self, state: Any, about: Mapping[str, Any]) -> None:
        try:
            self.last = self.checkpoints.save(state, about)
        except (OSError, ConfigError) as error:  # a full disk, or a value that cannot be saved
            self._handle_failure(error)
            return
        if self._failing:
            _log.warning("checkpoints can be saved again")
        self._failing, self._saved_steps = False, about["steps"]

    def _handle_failure(self, error: Exception) -> None:
        if not self._failing:
            _log.warning("the checkpoint could not be saved: %s. Training continues, and saving is retried", error)
        self._failing = True

    def pop_metrics(self) -> dict[str, float]:
        """Return the seconds that the last save took, once."""
        seconds, self._unreported_seconds = self._unreported_seconds, None
        return {} if seconds is None else {"time/save_seconds": seconds}
