"""Metrics of a running flow: waiting since the last row, and restarts of workers over the whole run."""

from dataclasses import dataclass
from types import SimpleNamespace

from raceway.training.flow_metrics import FlowMetrics


@dataclass(eq=False)
class Worker:
    """An actor, as far as its restarts are concerned."""

    name: str
    incarnation: int = 0


def test_waiting_and_restarts_are_reported() -> None:
    """A worker counts once for all its shards, in all gathers; restarts before a resume count too."""
    workers = [Worker("first"), Worker("second")]
    gathers = [
        SimpleNamespace(
            in_flight=[],
            meter=SimpleNamespace(waiting=0.0),
            shards=[SimpleNamespace(actor=workers[n % 2]) for n in range(6)],
        )
        for _ in range(2)
    ]
    flow_metrics = FlowMetrics(SimpleNamespace(stages=dict(enumerate(gathers))))
    assert flow_metrics.metrics() == {"time/wait_rollouts_seconds": 0.0}
    workers[0].incarnation, workers[1].incarnation = 2, 1
    gathers[1].meter.waiting = 0.5
    assert flow_metrics.take_restarted() == ["first", "first", "second"]
    assert flow_metrics.take_restarted() == []
    assert flow_metrics.metrics() == {"time/wait_rollouts_seconds": 0.5, "rollout/worker_restarts": 3}
    assert flow_metrics.metrics() == {"time/wait_rollouts_seconds": 0.0, "rollout/worker_restarts": 3}
    assert FlowMetrics(SimpleNamespace(stages=dict(enumerate(gathers))), restarts_before=4).num_restarts == 7
