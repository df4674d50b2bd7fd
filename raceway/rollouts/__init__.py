"""Rollouts: collecting environment steps with a policy, recovery from failures, evaluation and videos."""

from raceway.rollouts.collector import Collector
from raceway.rollouts.fragment_values import EvaluatedFragment, RunningReturns, evaluate_fragment, flatten_steps

__all__ = ["Collector", "EvaluatedFragment", "RunningReturns", "evaluate_fragment", "flatten_steps"]
