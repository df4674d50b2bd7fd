"""Playing: environments and policies together, and how many workers that is worth."""

from raceway.play.collect import Collector
from raceway.play.fragments import Judged, RunningReturns, judged, rows_of_steps
from raceway.play.sending import WeightSender
from raceway.play.sizing import StepCost, choose_workers, measure_step

__all__ = [
    "Collector",
    "Judged",
    "RunningReturns",
    "StepCost",
    "WeightSender",
    "choose_workers",
    "judged",
    "measure_step",
    "rows_of_steps",
]
