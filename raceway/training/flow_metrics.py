"""Metrics of the running flow: waiting times, queue length and worker restarts."""

from __future__ import annotations

from typing import Any


class FlowMetrics:
    """Reports, for every iteration, the driver's waiting times for rollouts and learner, and worker restarts.

    Args:
        run: the running flow.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        stages = [stage for stage in run.stages.values() if hasattr(stage, "in_flight")]
        self._gathers = [stage for stage in stages if hasattr(stage, "shards")]
        self._offloaded = [stage for stage in stages if stage not in self._gathers]  # a remote learner
        self._previous = self._waiting_seconds()

    def _waiting_seconds(self) -> dict[str, float]:
        """Return the total waiting times: the maximum over stages, as one driver waits for all of them at once."""
        sides = {"time/wait_rollouts_seconds": self._gathers, "time/wait_learner_seconds": self._offloaded}
        return {name: max(stage.meter.waiting for stage in stages) for name, stages in sides.items() if stages}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of an iteration: waiting times since the last call, queue length, total restarts."""
        current, previous = self._waiting_seconds(), self._previous
        self._previous = current
        metrics: dict[str, float] = {name: seconds - previous[name] for name, seconds in current.items()}
        if self._offloaded:
            metrics["train/queue_length"] = sum(len(stage.in_flight) for stage in self._offloaded)
        if self._run.counts["restarted"]:
            metrics["rollout/worker_restarts"] = self._run.counts["restarted"]
        return metrics
