"""The share of training time of every phase, in which waiting is a part of the phase that is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WAITING = {"wait_rollouts": "rollouts", "wait_dataset": "dataset", "wait_learner": "train"}
"""Metrics of waiting, and the phase that is waited for."""


class PhaseTimes:
    """Adds up the seconds of the phases over iterations."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the seconds of a row of metrics."""
        for name, value in row.items():
            if name.startswith("time/") and name.endswith("_seconds"):
                phase = name.removeprefix("time/").removesuffix("_seconds")
                self._seconds[phase] = self._seconds.get(phase, 0.0) + value

    def shares(self) -> dict[str, tuple[float, float]]:
        """Return the share of every phase, largest first, and the part of it that is waiting. They add up to 1.

        >>> times = PhaseTimes()
        >>> times.add({"time/rollouts_seconds": 3.0, "time/wait_rollouts_seconds": 2.0, "time/train_seconds": 1.0})
        >>> times.shares()
        {'rollouts': (0.75, 0.5), 'train': (0.25, 0.0)}
        """
        phases = {name: seconds for name, seconds in self._seconds.items() if name not in _WAITING}
        waiting = {phase: self._seconds.get(name, 0.0) for name, phase in _WAITING.items()}
        total = sum(phases.values()) or 1.0
        return {
            name: (seconds / total, min(waiting.get(name, 0.0), seconds) / total)
            for name, seconds in sorted(phases.items(), key=lambda phase: -phase[1])
        }

    def texts(self) -> list[str]:
        """Return the shares as texts such as `rollouts 75% (waiting 50%)`."""
        return [
            f"{name} {share:.0%}" + (f" (waiting {waiting:.0%})" if waiting >= 0.005 else "")
            for name, (share, waiting) in self.shares().items()
        ]
