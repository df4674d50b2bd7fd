"""Deadlines of calls, counted from the start of their execution."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from raceway.errors import DeadlineExceeded

if TYPE_CHECKING:
    from raceway.engine._core import EngineCore
    from raceway.engine._core_actor import CoreActor


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
        actor.deadline = (self._engine.clock() + future.timeout, id)
        if actor.deadline[0] < actor.deadline_timer_at:
            self._set_timer(actor)

    def _set_timer(self, actor: CoreActor) -> None:
        # One timer per actor, however many of its calls have deadlines; an earlier deadline replaces it.
        when = actor.deadline_timer_at = actor.deadline[0]
        self._engine.call_at(when, lambda: self._check(actor, when))

    def _check(self, actor: CoreActor, timer: float) -> None:
        """Kill the actor if its running call is overdue."""
        if timer != actor.deadline_timer_at:
            return  # this timer was replaced
        actor.deadline_timer_at = math.inf
        when, id = actor.deadline
        entry = actor.calls.get(id)
        if entry is None:
            return
        if self._engine.clock() < when:  # it runs a later call by now, which has time left
            self._set_timer(actor)
        elif not self._engine._reply_arrived(actor, id):
            excess = f"{actor.name}.{entry[1].method} ran for more than {entry[0].timeout:g} s"
            self._engine._declare_dead(actor, DeadlineExceeded(f"{excess}, so {actor.name} was killed", actor.name))
