"""Operators of reinforcement learning: the parts that plans of algorithms are composed of.

An operator with attributes that change while it runs derives from `Stateful` and lists them in `state_attributes`; its
constants are part of its construction and are not saved.
"""

from raceway.learner.exploration import Exploration
from raceway.learner.learner import Learner
from raceway.learner.objectives import Loss, LossAndMetrics, LossOutput, Objective, Target
from raceway.ops.all_reduce import AllReduce, MinibatchGradients
from raceway.ops.batches import (
    AddAdvantages,
    AddLogProbs,
    AddReturns,
    ConcatBatches,
    ConcatFragments,
    StandardizeFields,
)
from raceway.ops.circular_batches import CircularBatches
from raceway.ops.closed_form import FitOneStep
from raceway.ops.datasets import AddDiscounts, DatasetReader, DatasetSettings, parallel_dataset
from raceway.ops.meta import FitBaseline, InnerAdapt, MetaUpdate
from raceway.ops.perturbations import (
    EstimateGradient,
    MergeObservations,
    PerturbationSettings,
    PerturbationWorker,
)
from raceway.ops.q_returns import AddQLambdaReturns
from raceway.ops.replay import (
    HindsightSettings,
    ReplaySettings,
    ReplayShard,
    StoreToReplay,
    UpdatePriorities,
    parallel_replay,
    replay_limits,
)
from raceway.ops.replay_insertion import ReplayCounts
from raceway.ops.report import AddProgress, CountSteps, MergeStats, ReportMetrics, TrainStats
from raceway.ops.rollouts import RolloutSettings, RolloutWorker, episodes_of_shard, parallel_rollouts
from raceway.ops.train import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    Explore,
    Gradients,
    TrainOneStep,
)
from raceway.ops.transitions import EpisodeTransitions, Sequences, Transitions, replay_rows, transitions
from raceway.ops.weights import Fresh, UpdateWeights

__all__ = [
    "AddAdvantages",
    "AddDiscounts",
    "AddLogProbs",
    "AddProgress",
    "AddQLambdaReturns",
    "AddReturns",
    "AllReduce",
    "ApplyGradients",
    "AverageGradients",
    "CircularBatches",
    "ComputeGradients",
    "ConcatBatches",
    "ConcatFragments",
    "CountSteps",
    "DatasetReader",
    "DatasetSettings",
    "EpisodeTransitions",
    "EstimateGradient",
    "Exploration",
    "Explore",
    "FitBaseline",
    "FitOneStep",
    "Fresh",
    "Gradients",
    "HindsightSettings",
    "InnerAdapt",
    "Learner",
    "Loss",
    "LossAndMetrics",
    "LossOutput",
    "MergeObservations",
    "MergeStats",
    "MetaUpdate",
    "MinibatchGradients",
    "Objective",
    "PerturbationSettings",
    "PerturbationWorker",
    "ReplayCounts",
    "ReplaySettings",
    "ReplayShard",
    "ReportMetrics",
    "RolloutSettings",
    "RolloutWorker",
    "Sequences",
    "StandardizeFields",
    "StoreToReplay",
    "Target",
    "TrainOneStep",
    "TrainStats",
    "Transitions",
    "UpdatePriorities",
    "UpdateWeights",
    "episodes_of_shard",
    "parallel_dataset",
    "parallel_replay",
    "parallel_rollouts",
    "replay_limits",
    "replay_rows",
    "transitions",
]
