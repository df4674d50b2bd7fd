"""ES: evolution strategies, a gradient estimated from the returns of perturbed weights.

Paper: Salimans et al. 2017, https://arxiv.org/abs/1703.03864

    perturbations -> two episodes per direction     on every worker, with θ + σ ε and θ - σ ε
       -> centred ranks of the returns
       -> gradient, from ranks and noise            in the driver, which regenerates the noise
       -> one Adam step, with weight decay
       -> weights                                   to all workers

Differs from the paper: the noise comes from a generator that counts, instead of a table that everybody holds; both
episodes of a direction start from the same seed; equal returns share their rank; images have no virtual batch
normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from raceway.agents import Greedy, Spaces
from raceway.agents.builders import deterministic_actor
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import PerturbationConfig
from raceway.algorithms.sources import PerturbationSource
from raceway.flow import Iter, ParIter
from raceway.ops import ApplyGradients, ConcatBatches, EstimateGradient, MergeObservations, TrainStats
from raceway.rl import Trials, es_coefficients
from raceway.settings.field_types import NonNegativeFloat, PositiveFloat, Widths


@dataclass(frozen=True, kw_only=True)
class Config(PerturbationConfig):
    """Settings of ES."""

    hidden: Widths | None = (64, 64)
    """Widths of the hidden layers."""
    lr: PositiveFloat = 1e-2
    """Learning rate."""
    l2: NonNegativeFloat = 0.005
    """Coefficient of the penalty ½ |θ|² on the weights."""


def explorer(spaces: Spaces, cfg: Config) -> Greedy:
    """Return an explorer that takes the policy's own action: exploration is in the weights."""
    return Greedy()


@algorithm("es", Config, agent=deterministic_actor, explorer=explorer, source=PerturbationSource)
def es(perturbations: ParIter[Trials], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    coefficients = partial(es_coefficients, sigma=cfg.sigma)
    return (
        perturbations.gather_sync()
        .combine(ConcatBatches())
        .for_each(MergeObservations(ctx.learner))
        .for_each(EstimateGradient(ctx.learner, coefficients, cfg.seed, l2=cfg.l2))
        .for_each(ApplyGradients(ctx.learner))
        .for_each(ctx.weights())
    )
