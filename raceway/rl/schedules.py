"""Schedules: settings that change during a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearSchedule:
    """Change linearly from `start` to `end` over `over` environment steps, then stay at `end`.

    >>> epsilon = LinearSchedule(1.0, 0.1, over=1000)
    >>> epsilon(0), round(epsilon(500), 3), epsilon(2000)
    (1.0, 0.55, 0.1)
    """

    start: float
    end: float
    over: float

    def __call__(self, steps: float) -> float:
        """Return the value after this number of environment steps."""
        progress = min(1.0, steps / self.over) if self.over else 1.0
        return (1 - progress) * self.start + progress * self.end
