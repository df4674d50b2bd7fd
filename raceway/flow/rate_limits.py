"""Ratios between streams: whose turn it is by their weights, and how far one may run ahead of another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, ClassVar

from raceway.checks import check_choice, check_positive
from raceway.errors import ConfigError, FlowError
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


class RateLimiter(Stateful):
    """Keeps count for several limits."""

    state_attributes: ClassVar[tuple[str, ...]] = ("taken",)

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self.limits = limits
        self.taken: dict[tuple[int, str], float] = {}
        """How much was taken, by limit and stream."""

    def took(self, name: str, item: Any) -> None:
        """Count an item of a stream."""
        for place, limit in enumerate(self.limits):
            if name in (limit.branch, limit.per):
                try:
                    size = 1 if limit.size is None else limit.size(item)
                except Exception as error:
                    raise FlowError(f"the size function of {limit} raised {error!r} for {item!r}") from error
                self.taken[place, name] = self.taken.get((place, name), 0) + size

    def hold(self, name: str, ended: Collection[str]) -> bool:
        """Whether no item of a stream may be taken now.

        >>> limits = RateLimiter([RateLimit(branch="sample", per="insert", ratio=2)])
        >>> limits.hold("sample", [])
        True
        >>> limits.took("insert", "an item")
        >>> limits.hold("sample", [])
        False
        """
        for place, limit in enumerate(self.limits):
            if limit.branch == name and limit.per not in ended:
                most = limit.ratio * self.taken.get((place, limit.per), 0) + limit.slack
                taken = self.taken.get((place, name), 0)
                if taken + 1 > most if limit.size is None else taken >= most:
                    return True
        return False


def branch_weights(
    names: Sequence[str], weights: Sequence[float] | Mapping[str, float] | None, where: str = "union"
) -> dict[str, float]:
    """Return the weight of every stream. They are given by name, or in the order of the streams; the default is 1.

    >>> branch_weights(["a", "b"], {"b": 0.5})
    {'a': 1, 'b': 0.5}
    """
    if weights is None or isinstance(weights, Mapping):
        chosen = dict(weights or {})
    elif len(weights) != len(names):
        raise ConfigError(f"{where} of {len(names)} branches was given {len(weights)} weights: {weights!r}")
    else:
        chosen = dict(zip(names, weights, strict=True))
    for name, weight in chosen.items():
        check_choice(f"branch of {where}", name, names)
        check_positive(f"the weight of branch {name!r}", weight)
    return {name: chosen.get(name, 1) for name in names}


class WeightedTurns(Stateful):
    """Takes turns by weights: a whole one means so many in a row; others are exact over a window, by a credit.

    >>> turns = WeightedTurns([2, 0.5])
    >>> order = []
    >>> for _ in range(10):
    ...     order.append(turns.whose([0, 1]))
    ...     turns.took(order[-1])
    >>> order
    [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("turn", "credits")

    def __init__(self, weights: Sequence[float]) -> None:
        self._weights = [Fraction(str(weight)) for weight in weights]  # 0.1 is meant to be a tenth
        self.turn = 0
        self.credits = [self._weights[0], *[Fraction(0)] * (len(weights) - 1)]

    def whose(self, free: Sequence[int]) -> int:
        """Return whose turn it is, of those that can take it."""
        while self.turn not in free or self.credits[self.turn] < 1:
            self.turn = (self.turn + 1) % len(self._weights)
            if self.turn == 0:
                self._skip(free)
            if self.credits[self.turn] < 1:
                self.credits[self.turn] += self._weights[self.turn]
        return self.turn

    def _skip(self, free: Sequence[int]) -> None:
        """Leave out the cycles in which nobody would have a turn: with small weights there are very many."""
        cycles = min(ceil((1 - self.credits[place]) / self._weights[place]) for place in free) - 1
        for place in free if cycles > 0 else ():
            self.credits[place] += cycles * self._weights[place]

    def took(self, place: int) -> None:
        """Count a turn that was taken."""
        self.credits[place] -= 1
