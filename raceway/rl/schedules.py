"""Numbers that change while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Linear:
    """From one number to another over so many steps of environments, and then the same.

    >>> epsilon = Linear(1.0, 0.1, over=1000)
    >>> epsilon(0), round(epsilon(500), 3), epsilon(2000)
    (1.0, 0.55, 0.1)
    """

    start: float
    end: float
    over: float

    def __call__(self, steps: int) -> float:
        """Return the number after so many steps."""
        part = min(1.0, steps / self.over) if self.over else 1.0
        return (1 - part) * self.start + part * self.end
