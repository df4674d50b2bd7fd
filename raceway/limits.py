"""Ratios between streams that must be kept: so many samples for every insert, say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from raceway.state import Stateful


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """Keep one stream from running ahead of another.

    What is taken of `branch` is at most `ratio` times what was taken of `per`, plus `slack`: counted in items, or in
    what `size(item)` returns, and then it may be more by less than one item. When `per` has ended, so has the limit.
    """

    branch: str
    per: str
    ratio: float
    slack: float = 0.0
    size: Callable[[Any], float] | None = None


class Limits(Stateful):
    """Keeps count for several limits."""

    kept = ("taken",)

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self._limits = limits
        self.taken: dict[tuple[int, str], float] = {}
        """How much was taken, by limit and stream."""

    def took(self, name: str, item: Any) -> None:
        """Count an item of a stream."""
        for place, limit in enumerate(self._limits):
            if name in (limit.branch, limit.per):
                size = 1 if limit.size is None else limit.size(item)
                self.taken[place, name] = self.taken.get((place, name), 0) + size

    def hold(self, name: str, ended: Collection[str]) -> bool:
        """Whether no item of a stream may be taken now.

        >>> limits = Limits([RateLimit(branch="sample", per="insert", ratio=2)])
        >>> limits.hold("sample", [])
        True
        >>> limits.took("insert", "an item")
        >>> limits.hold("sample", [])
        False
        """
        for place, limit in enumerate(self._limits):
            if limit.branch == name and limit.per not in ended:
                most = limit.ratio * self.taken.get((place, limit.per), 0) + limit.slack
                taken = self.taken.get((place, name), 0)
                if taken + 1 > most if limit.size is None else taken >= most:
                    return True
        return False
