"""How the parts of a running flow get on with one another, as figures of every iteration."""

from __future__ import annotations

from typing import Any


class Health:
    """Tells what was waited for, and how often workers had to be restarted.

    Args:
        run: the iteration of a flow that is under way.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        stages = [stage for stage in run.stages.values() if hasattr(stage, "busy")]
        self._gathers = [stage for stage in stages if hasattr(stage, "lanes")]
        self._moved = [stage for stage in stages if stage not in self._gathers]  # a learner that is elsewhere
        self._before = self._waited()

    def _waited(self) -> dict[str, float]:
        """Return seconds so far. Streams that are waited for at the same time are so by one driver."""
        sides = {"time/wait_rollouts_seconds": self._gathers, "time/wait_learner_seconds": self._moved}
        return {name: max(stage.meter.waiting for stage in some) for name, some in sides.items() if some}

    def figures(self) -> dict[str, float]:
        """Return what is new since it was last asked."""
        now, before = self._waited(), self._before
        self._before = now
        found: dict[str, float] = {name: seconds - before[name] for name, seconds in now.items()}
        if self._moved:
            found["train/queue_length"] = sum(len(stage.busy) for stage in self._moved)
        if self._run.counts["restarted"]:
            found["rollout/worker_restarts"] = self._run.counts["restarted"]
        return found
