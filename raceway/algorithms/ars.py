"""ARS: augmented random search, for linear policies.

Paper: Mania et al. 2018, https://arxiv.org/abs/1803.07055

    perturbations -> two episodes per direction     on every worker, with θ + σ ε and θ - σ ε
       -> the directions with the best returns
       -> step along them, divided by the           in the driver, which regenerates the noise
          deviation of their returns
       -> weights                                   to all workers

V1 sees observations as they are; V2 (`normalise_obs`) normalises them. With fewer `num_top` than directions these are
the paper's V1-t and V2-t.

Differs from the paper: the noise comes from a generator that counts, instead of a table that everybody holds; both
episodes of a direction start from the same seed; normalised observations are clipped to ±10.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from raceway.agents import Agent, Greedy, Spaces
from raceway.agents.builders import deterministic_actor
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import PerturbationConfig
from raceway.algorithms.sources import PerturbationSource
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.ops import ApplyGradients, ConcatBatches, EstimateGradient, MergeObservations, TrainStats
from raceway.rl import Trials, ars_coefficients
from raceway.settings.field_types import PositiveFloat, PositiveInt, Widths


@dataclass(frozen=True, kw_only=True)
class Config(PerturbationConfig):
    """Settings of ARS."""

    hidden: Widths | None = None
    """Widths of the hidden layers. If not set, the policy is linear, without a bias, and starts with zeros."""
    num_directions: PositiveInt = 8
    """Directions per iteration in which weights are perturbed, each for two episodes."""
    num_top: PositiveInt | None = None
    """Number b of the best directions, which a step follows (default: all)."""
    lr: PositiveFloat = 2e-2
    """Step size α."""
    alive_bonus: float = 0.0
    """What the environment pays for every step that an episode lasts: it is subtracted from the rewards that are
    learnt from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_top is not None and self.num_top > self.num_directions:
            raise ConfigError(f"num_top {self.num_top} is more than num_directions {self.num_directions}. Lower it.")


def agent(spaces: Spaces, cfg: Config) -> Agent:
    """Return a linear policy of zeros, or with hidden layers one with random weights."""
    agent = deterministic_actor(spaces, cfg, linear=True)
    unused = {"adam_epsilon": "steps are those of plain gradient ascent"}
    agent.actor.unused_settings = {**agent.actor.unused_settings, **unused}
    return agent


def explorer(spaces: Spaces, cfg: Config) -> Greedy:
    """Return an explorer that takes the policy's own action: exploration is in the weights."""
    return Greedy()


@algorithm("ars", Config, agent=agent, explorer=explorer, source=PerturbationSource)
def ars(perturbations: ParIter[Trials], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    coefficients = partial(ars_coefficients, num_top=cfg.num_top or cfg.num_directions)
    return (
        perturbations.gather_sync()
        .combine(ConcatBatches())
        .for_each(MergeObservations(ctx.learner))
        .for_each(EstimateGradient(ctx.learner, coefficients, cfg.seed, alive_bonus=cfg.alive_bonus))
        .for_each(ApplyGradients(ctx.learner, optimiser="sgd"))
        .for_each(ctx.weights())
    )
