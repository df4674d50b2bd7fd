"""The failure policy of shards: what happens when an actor dies or an operator raises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from raceway.checks import check_int, check_positive, unknown_name
from raceway.engine.base import Actor

POLICIES = ("restart", "drop", "raise")


@dataclass(frozen=True, kw_only=True)
class Failures:
    """Failure policy: how to handle an actor that dies, or a guest that raises."""

    policy: str = "raise"
    """`restart` the actor and recreate the guest, `drop` the guest and continue without it, or `raise`."""
    budget: int = 3
    """Restarts allowed for an actor within `window` seconds, or guests that may be dropped."""
    window: float = 60.0
    """Seconds after which a restart no longer counts against the budget."""
    deadline: float | None = None
    """Seconds that a request may take before the actor is killed."""
    errors: bool = True
    """Whether the policy also applies to exceptions, or only to the death of an actor."""
    on_restart: Callable[[Actor], Any] | None = None
    """Called with the actor before its guest is recreated. Messages that it sends are handled first."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown_name("failure policy", self.policy, POLICIES)
        check_int("the failure budget", self.budget)
        check_positive("window (in seconds)", self.window)
        if self.deadline is not None:
            check_positive("deadline (in seconds)", self.deadline)
