"""An actor as its engine sees it: its outstanding calls, its deadline and its restarts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from raceway.engine._codec import Payload
from raceway.engine.base import Actor, Future, Resources, Restarts
from raceway.errors import RestartsExhausted

if TYPE_CHECKING:
    from raceway.engine._core import EngineCore


@dataclass(slots=True)
class Deadline:
    """When a running call's actor is killed."""

    call_id: int
    when: float
    num_waits: int = 0
    """Answers of the driver that the call waits for. The deadline is paused until they have come."""
    remaining: float = 0.0
    """Seconds that were left when it was paused."""


class CoreActor(Actor):
    """An actor as its engine sees it."""

    def __init__(
        self,
        engine: EngineCore,
        name: str,
        factory: Payload,
        resources: Resources,
        threads: int,
        restarts: Restarts,
        start_timeout: float,
        returns_queued_calls: bool,
    ):
        super().__init__(engine, name, returns_queued_calls)
        self.core = engine
        self.factory = factory
        self.resources = resources
        self.threads = threads
        self.restarts = restarts
        self.start_timeout = start_timeout
        self.deadline: Deadline | None = None
        """The deadline of the running call, or of an earlier one."""
        self.deadline_timer_at = math.inf
        """When a timer checks whether the deadline has passed."""
        self.restarted_at: list[float] = []
        """The times of its recent restarts."""
        self.awaits_restart = False
        """Whether it is in the pause before a restart: calls are kept until it is over."""

    def begin_incarnation(self, now: float, policy: Restarts) -> float:
        """Count a restart and return the pause before it, in seconds.

        Raises:
            RestartsExhausted: the budget is used up.
        """
        self.restarted_at = [time for time in self.restarted_at if now - time < policy.window]
        num_recent = len(self.restarted_at)
        if num_recent >= policy.budget:
            raise RestartsExhausted(
                f"{self.name} has been restarted {num_recent} times within {policy.window:g} s, its budget. "
                f"Last: {self.error}",
                self.name,
            ) from self.error
        num_in_a_row = count_in_a_row(self.restarted_at, now, 2 * policy.max_backoff)
        self.restarted_at.append(now)
        self.incarnation += 1
        self.error = None
        self.ready = Future(self.core, self, "__init__")
        return min(policy.max_backoff, policy.backoff * 2 ** min(num_in_a_row - 1, 64)) if num_in_a_row else 0.0


def count_in_a_row(times: list[float], now: float, gap: float) -> int:
    """Return how many of the latest times form a series up to `now` with gaps of at most `gap` seconds.

    >>> count_in_a_row([1.0, 30.0, 35.0], now=39.0, gap=10.0)
    2
    """
    count = 0
    for time in reversed(times):
        if now - time > gap:
            break
        count, now = count + 1, time
    return count
