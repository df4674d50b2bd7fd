"""Deadlines of calls, counted from the start of their execution, without the time in which they wait for the driver.

A call that waits for nested calls is not stuck, however long these take: they have deadlines of their own.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from raceway.engine._core_actor import CoreActor, Deadline
from raceway.engine.base import Future
from raceway.errors import DeadlineExceeded

if TYPE_CHECKING:
    from raceway.engine._core import EngineCore


class Deadlines:
    """Kills actors whose running call exceeds its deadline. All methods are called with the engine's lock held."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine

    def start_first(self, actor: CoreActor) -> None:
        """Start the deadline of the call that the actor runs now, if it has one."""
        for id, (future, _) in actor.calls.items():
            if future.timeout is not None:
                self.start(actor, id)
            break

    def start(self, actor: CoreActor, id: int) -> None:
        """Start the deadline of a call that runs now, or as soon as its actor is ready."""
        future = actor.calls[id][0]
        assert future.timeout is not None
        if not actor.ready.done():
            actor.ready.add_done_callback(lambda _: self.start(actor, id) if id in actor.calls else None)
            return
        actor.deadline = Deadline(id, self._engine.clock() + future.timeout)
        self._ensure_timer(actor, actor.deadline)

    def pause_until(self, answer: Future[Any], actor: CoreActor) -> None:
        """Pause the deadline of the call that the actor runs now, if it has one, until the driver's answer is there."""
        deadline = actor.deadline
        if deadline is None or deadline.call_id not in actor.calls:
            return
        if not deadline.num_waits:
            deadline.remaining = deadline.when - self._engine.clock()
        deadline.num_waits += 1  # several threads of the actor may wait
        answer.add_done_callback(lambda _: self._resume(actor, deadline))

    def _resume(self, actor: CoreActor, deadline: Deadline) -> None:
        deadline.num_waits -= 1
        if not deadline.num_waits and deadline is actor.deadline and deadline.call_id in actor.calls:
            deadline.when = self._engine.clock() + deadline.remaining
            self._ensure_timer(actor, deadline)

    def _ensure_timer(self, actor: CoreActor, deadline: Deadline) -> None:
        # One timer per actor, however many of its calls have deadlines; an earlier deadline replaces it.
        if deadline.when < actor.deadline_timer_at:
            when = actor.deadline_timer_at = deadline.when
            self._engine.call_at(when, lambda: self._check(actor, when))

    def _check(self, actor: CoreActor, timer: float) -> None:
        """Kill the actor if its running call is overdue."""
        if timer != actor.deadline_timer_at:
            return  # this timer was replaced
        actor.deadline_timer_at = math.inf
        deadline = actor.deadline
        if deadline is None or deadline.call_id not in actor.calls or deadline.num_waits:
            return
        if self._engine.clock() < deadline.when:  # it runs a later call by now, or has waited, so it has time left
            self._ensure_timer(actor, deadline)
        elif not (self._engine._reply_arrived(actor, deadline.call_id) or deadline.num_waits):
            future, message = actor.calls[deadline.call_id]
            excess = f"{actor.name}.{message.method} ran for more than {future.timeout:g} s"
            self._engine._declare_dead(actor, DeadlineExceeded(f"{excess}, so {actor.name} was killed", actor.name))
