"""Rollouts: environments and policies together."""

from raceway.rollouts.collector import Collector
from raceway.rollouts.fragments import Judged, RunningReturns, judged, rows_of_steps

__all__ = ["Collector", "Judged", "RunningReturns", "judged", "rows_of_steps"]
