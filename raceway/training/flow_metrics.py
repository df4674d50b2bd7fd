"""Metrics of the running flow: waiting times, queue length and worker restarts."""

from __future__ import annotations

from typing import Any


class FlowMetrics:
    """Reports, for every iteration, the driver's waiting times for source and learner, and worker restarts.

    Args:
        run: the running flow.
        restarts_before: worker restarts before the run was resumed.
        source: the name of the source.
        group: the group of metrics that restarts belong to.
    """

    def __init__(self, run: Any, restarts_before: int = 0, *, source: str = "rollouts", group: str = "rollout") -> None:
        self._source, self._restarts_metric = source, f"{group}/worker_restarts"
        stages = [stage for stage in run.stages.values() if hasattr(stage, "in_flight")]
        self._gathers = [stage for stage in stages if hasattr(stage, "shards")]
        self._offloaded = [stage for stage in stages if stage not in self._gathers]  # a remote learner
        shards = [shard for stage in self._gathers for shard in stage.shards]
        self._actors = {id(shard.actor): shard.actor for shard in shards}.values()
        self._restarts_before = restarts_before
        self._previous = self._waiting_seconds()
        self._incarnations = {actor: actor.incarnation for actor in self._actors}

    @property
    def num_restarts(self) -> int:
        """Restarts of workers since the run began. One that has several shards counts once."""
        return self._restarts_before + sum(actor.incarnation for actor in self._actors)

    def take_restarted(self) -> list[str]:
        """Return the names of the workers that were restarted since the last call, once for every restart."""
        names: list[str] = []
        for actor, before in self._incarnations.items():
            self._incarnations[actor] = actor.incarnation
            names += [actor.name] * (actor.incarnation - before)
        return names

    def _waiting_seconds(self) -> dict[str, float]:
        """Return the total waiting times: the maximum over stages, as one driver waits for all of them at once."""
        sides = {f"time/wait_{self._source}_seconds": self._gathers, "time/wait_learner_seconds": self._offloaded}
        return {name: max(stage.meter.waiting for stage in stages) for name, stages in sides.items() if stages}

    def metrics(self) -> dict[str, float]:
        """Return the metrics of an iteration: waiting times since the last call, queue length, total restarts."""
        current, previous = self._waiting_seconds(), self._previous
        self._previous = current
        metrics: dict[str, float] = {name: seconds - previous[name] for name, seconds in current.items()}
        if self._offloaded:
            metrics["train/queue_length"] = sum(len(stage.in_flight) for stage in self._offloaded)
        num_restarts = self.num_restarts
        if num_restarts:
            metrics[self._restarts_metric] = num_restarts
        return metrics
