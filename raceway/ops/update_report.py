"""Metrics of a run that learns from a dataset: it has updates and epochs, and no episodes."""

from __future__ import annotations

from typing import Any, ClassVar

from raceway.ops.report import ReportMetrics, TrainStats


class ReportUpdates(ReportMetrics):
    """Turn stats into rows of metrics that count updates.

    Args:
        num_rows: rows of the dataset, which one epoch goes through.
    """

    state_attributes: ClassVar[tuple[str, ...]] = ("iterations", "updates", "rows")

    def __init__(self, num_rows: int) -> None:
        self.updates = self.rows = 0
        self.num_rows = num_rows
        super().__init__()

    @property
    def steps(self) -> int:
        """What the run counts: updates."""
        return self.updates

    def __call__(self, stats: TrainStats) -> dict[str, Any]:
        """Return a row of metrics."""
        seconds = self.phase_seconds("dataset", stats)
        self.iterations += 1
        self.updates += stats.num_updates
        self.rows += stats.num_steps
        return {
            "time/iterations": self.iterations,
            "time/total_updates": self.updates,
            "time/time_elapsed": self.elapsed,
            "time/updates_per_second": self.updates / self.elapsed,
            "dataset/epoch": self.rows / self.num_rows,
            **stats.metrics,
            **seconds,
        }
