"""Operators of reinforcement learning: what algorithms are put together from."""

from raceway.ops.collect import Collector
from raceway.ops.replay import (
    ReplayCounts,
    ReplaySettings,
    ReplayShard,
    StoreToReplay,
    UpdatePriorities,
    parallel_replay,
    replay_limits,
)
from raceway.ops.report import ReportMetrics, TrainStats
from raceway.ops.rollouts import RolloutSettings, RolloutWorker, episodes_of_shard, parallel_rollouts
from raceway.ops.sizing import StepCost, choose_workers, measure_step
from raceway.ops.train import AddReturns, ConcatBatches, Learner, TrainOneStep, UpdateWeights
from raceway.ops.transitions import Sequences, Transitions

__all__ = [
    "AddReturns",
    "Collector",
    "ConcatBatches",
    "Learner",
    "ReplayCounts",
    "ReplaySettings",
    "ReplayShard",
    "ReportMetrics",
    "RolloutSettings",
    "RolloutWorker",
    "Sequences",
    "StepCost",
    "StoreToReplay",
    "TrainOneStep",
    "TrainStats",
    "Transitions",
    "UpdatePriorities",
    "UpdateWeights",
    "choose_workers",
    "episodes_of_shard",
    "measure_step",
    "parallel_replay",
    "parallel_rollouts",
    "replay_limits",
]
