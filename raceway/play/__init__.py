"""Playing: environments and policies together, and how many workers that is worth."""

from raceway.play.collect import Collector
from raceway.play.sizing import StepCost, choose_workers, measure_step

__all__ = ["Collector", "StepCost", "choose_workers", "measure_step"]
