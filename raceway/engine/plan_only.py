"""An engine for plans that are shown and not run: its actors are names, and nothing is started."""

from __future__ import annotations

from raceway.engine._core import CoreActor
from raceway.engine.base import Message
from raceway.engine.inline import InlineEngine
from raceway.errors import FlowError


class PlanOnlyEngine(InlineEngine):
    """Creates actors without their objects, so that a plan can be built, drawn and described.

    >>> with PlanOnlyEngine() as engine:
    ...     engine.spawn(list, name="rollouts-0")
    <Actor rollouts-0>
    """

    name = "plan"

    def _launch(self, actor: CoreActor) -> None:
        actor.ready.set_result(True)

    def _transmit(self, actor: CoreActor, id: int, message: Message) -> None:
        raise FlowError(f"{actor.name} cannot be called: its plan was built to be shown, without an engine to run it")
