"""Ratios between the branches of a union: turns by weight, and limits on how far a branch may run ahead."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any, ClassVar, Literal

from raceway.checks import check_choice, check_positive
from raceway.errors import INTERRUPTS, ConfigError, FlowError
from raceway.state import Stateful

ALL: Literal["*"] = "*"
"""The weight of a branch of which all items that are ready are taken, without waiting for more."""
Weight = float | Literal["*"]


@dataclass(frozen=True, kw_only=True)
class RateLimit:
    """Keep one branch of a union from running ahead of another.

    At most `ratio` times the amount taken from `per`, plus `slack`, is taken from `branch`. Amounts are numbers of
    items or, with `size`, sums of `size(item)`; these may exceed the limit by less than one item. The limit no longer
    applies when `per` has ended.
    """

    branch: str
    per: str
    ratio: float
    slack: float = 0.0
    size: Callable[[Any], float] | None = None


class RateLimiter(Stateful):
    """Enforces the rate limits of a union."""

    state_attributes: ClassVar[tuple[str, ...]] = ("taken",)

    def __init__(self, limits: Sequence[RateLimit]) -> None:
        self.limits = limits
        self.taken: dict[tuple[int, str], float] = {}
        """Amounts taken, by index of the limit and name of the branch."""

    def count(self, name: str, item: Any) -> None:
        """Count an item taken from a branch."""
        for index, limit in enumerate(self.limits):
            if name in (limit.branch, limit.per):
                try:
                    size = 1 if limit.size is None else limit.size(item)
                except INTERRUPTS:
                    raise
                except Exception as error:
                    raise FlowError(f"the size function of {limit} raised {error!r} for {item!r}") from error
                self.taken[index, name] = self.taken.get((index, name), 0) + size

    def blocks(self, name: str, ended: Collection[str]) -> bool:
        """Whether the limits forbid taking an item from a branch now.

        >>> limiter = RateLimiter([RateLimit(branch="sample", per="insert", ratio=2)])
        >>> limiter.blocks("sample", [])
        True
        >>> limiter.count("insert", "an item")
        >>> limiter.blocks("sample", [])
        False
        """
        for index, limit in enumerate(self.limits):
            if limit.branch == name and limit.per not in ended:
                allowed = limit.ratio * self.taken.get((index, limit.per), 0) + limit.slack
                taken = self.taken.get((index, name), 0)
                if taken + 1 > allowed if limit.size is None else taken >= allowed:
                    return True
        return False


def branch_weights(
    names: Sequence[str], weights: Sequence[Weight] | Mapping[str, Weight] | None, where: str = "union"
) -> dict[str, Weight]:
    """Return the weight of every branch, from weights by name or in the order of the branches. The default is 1.

    >>> branch_weights(["a", "b"], {"b": 0.5})
    {'a': 1, 'b': 0.5}
    """
    if weights is None or isinstance(weights, Mapping):
        by_name = dict(weights or {})
    elif len(weights) != len(names):
        raise ConfigError(f"{where} has {len(names)} branches but {len(weights)} weights: {weights!r}")
    else:
        by_name = dict(zip(names, weights, strict=True))
    for name, weight in by_name.items():
        check_choice(f"branch of {where}", name, names)
        if isinstance(weight, str) and weight != ALL:
            raise ConfigError(
                f"the weight of branch {name!r} must be a number above 0, or {ALL!r} for all items that are ready, not "
                f"{weight!r}"
            )
        if weight != ALL:
            check_positive(f"the weight of branch {name!r}", weight)
    return {name: by_name.get(name, 1) for name in names}


class WeightedTurns(Stateful):
    """Takes turns by weight: a whole weight means that many turns in a row; fractions are exact over several cycles.

    A branch gets its weight as credit in every cycle, and a turn costs 1. With `*`, it has turns until it ends its own.

    >>> turns = WeightedTurns([2, 0.5])
    >>> order = []
    >>> for _ in range(10):
    ...     order.append(turns.choose([0, 1]))
    ...     turns.charge(order[-1])
    >>> order
    [0, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("turn", "credits")

    def __init__(self, weights: Sequence[Weight]) -> None:
        # Through text, so that 0.1 is exactly a tenth.
        self._weights = [Fraction(1 if weight == ALL else str(weight)) for weight in weights]
        self.ends_own_turn = [weight == ALL for weight in weights]
        """Whether a branch has turns until `end_turn` is called for it."""
        self.turn = 0
        self.credits = [self._weights[0], *[Fraction(0)] * (len(weights) - 1)]

    def choose(self, available: Sequence[int]) -> int:
        """Return the index of the branch whose turn it is, among those that can take one."""
        while self.turn not in available or self.credits[self.turn] < 1:
            self.turn = (self.turn + 1) % len(self._weights)
            if self.turn == 0:
                self._skip_empty_cycles(available)
            if self.credits[self.turn] < 1:
                self.credits[self.turn] += self._weights[self.turn]
        return self.turn

    def _skip_empty_cycles(self, available: Sequence[int]) -> None:
        """Skip the cycles in which no branch would have a turn: with small weights there are very many."""
        cycles = min(ceil((1 - self.credits[index]) / self._weights[index]) for index in available) - 1
        for index in available if cycles > 0 else ():
            self.credits[index] += cycles * self._weights[index]

    def charge(self, index: int) -> None:
        """Charge a branch for the turn that it took."""
        if not self.ends_own_turn[index]:
            self.credits[index] -= 1

    def end_turn(self, index: int) -> None:
        """End the turn of a branch that has as many as it can take."""
        self.credits[index] = Fraction(0)
