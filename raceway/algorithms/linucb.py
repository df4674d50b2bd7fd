"""LinUCB: a contextual bandit that pulls the arm with the highest upper confidence bound of a linear model.

Paper: Li et al. 2010, https://arxiv.org/abs/1003.0146

    rollouts -> observations, arms, rewards     on every worker, by upper confidence bounds
       -> models of the arms that were pulled   updated in closed form
       -> weights                               to all workers

Differs from the paper: features are those of the observation alone (algorithm 1, a separate model for every arm); of
arms with equal bounds a random one is pulled; several environments may act before the models are updated.
"""

from __future__ import annotations

from dataclasses import dataclass

from raceway.agents import Spaces
from raceway.agents.linear_arms import UpperConfidence, linear_bandit
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import BanditConfig
from raceway.flow import Iter, ParIter
from raceway.ops import ConcatBatches, FitOneStep, TrainStats, Transitions
from raceway.rl import Fragment
from raceway.settings.field_types import NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class Config(BanditConfig):
    """Settings of LinUCB."""

    alpha: NonNegativeFloat = 1.0
    """Factor α of the standard deviation that is added to the mean reward of an arm."""


def explorer(spaces: Spaces, cfg: Config) -> UpperConfidence:
    """Return an explorer that pulls the arm with the highest upper confidence bound."""
    return UpperConfidence(cfg.alpha)


@algorithm("linucb", Config, agent=linear_bandit, explorer=explorer, actions=("discrete",))
def linucb(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(Transitions(cfg.gamma))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(FitOneStep(ctx.learner))
        .for_each(ctx.weights())
    )
