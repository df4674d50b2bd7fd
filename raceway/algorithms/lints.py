"""LinTS: a contextual bandit that pulls the best arm of a sample from its linear models (Thompson sampling).

Paper: Agrawal & Goyal 2013, https://arxiv.org/abs/1209.3352

    rollouts -> observations, arms, rewards     on every worker, by sampled models
       -> models of the arms that were pulled   updated in closed form
       -> weights                               to all workers

Differs from the paper: a separate model for every arm, with features of the observation alone, instead of one model
with features of each arm; α is a setting, instead of following from the number of pulls that are left. Several
environments may act before the models are updated.
"""

from __future__ import annotations

from dataclasses import dataclass

from raceway.agents import Spaces
from raceway.agents.linear_arms import ThompsonSampling, linear_bandit
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import BanditConfig
from raceway.flow import Iter, ParIter
from raceway.ops import ConcatBatches, FitOneStep, TrainStats, Transitions
from raceway.rl import Fragment
from raceway.settings.field_types import NonNegativeFloat


@dataclass(frozen=True, kw_only=True)
class Config(BanditConfig):
    """Settings of LinTS."""

    alpha: NonNegativeFloat = 1.0
    """Factor α (v in the paper) of the standard deviation of sampled models."""


def explorer(spaces: Spaces, cfg: Config) -> ThompsonSampling:
    """Return an explorer that pulls the best arm of a sample."""
    return ThompsonSampling(cfg.alpha)


@algorithm("lints", Config, agent=linear_bandit, explorer=explorer, actions=("discrete",))
def lints(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(Transitions(cfg.gamma))
        .gather_sync()
        .combine(ConcatBatches())
        .for_each(FitOneStep(ctx.learner))
        .for_each(ctx.weights())
    )
