"""Operators of reinforcement learning: what algorithms are put together from."""

from raceway.ops.batches import (
    AddAdvantages,
    AddLogProbs,
    AddReturns,
    ConcatBatches,
    ConcatFragments,
    StandardizeFields,
)
from raceway.ops.collect import Collector
from raceway.ops.learner import Learner, Loss
from raceway.ops.replay import (
    ReplayCounts,
    ReplaySettings,
    ReplayShard,
    StoreToReplay,
    UpdatePriorities,
    parallel_replay,
    replay_limits,
)
from raceway.ops.report import MergeStats, ReportMetrics, TrainStats
from raceway.ops.rollouts import RolloutSettings, RolloutWorker, episodes_of_shard, parallel_rollouts
from raceway.ops.sizing import StepCost, choose_workers, measure_step
from raceway.ops.train import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    Explore,
    Gradients,
    TrainOneStep,
    UpdateTarget,
)
from raceway.ops.transitions import Sequences, Transitions
from raceway.ops.weights import UpdateWeights

__all__ = [
    "AddAdvantages",
    "AddLogProbs",
    "AddReturns",
    "ApplyGradients",
    "AverageGradients",
    "Collector",
    "ComputeGradients",
    "ConcatBatches",
    "ConcatFragments",
    "Explore",
    "Gradients",
    "Learner",
    "Loss",
    "MergeStats",
    "ReplayCounts",
    "ReplaySettings",
    "ReplayShard",
    "ReportMetrics",
    "RolloutSettings",
    "RolloutWorker",
    "Sequences",
    "StandardizeFields",
    "StepCost",
    "StoreToReplay",
    "TrainOneStep",
    "TrainStats",
    "Transitions",
    "UpdatePriorities",
    "UpdateTarget",
    "UpdateWeights",
    "choose_workers",
    "episodes_of_shard",
    "measure_step",
    "parallel_replay",
    "parallel_rollouts",
    "replay_limits",
]
