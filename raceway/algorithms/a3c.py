"""A3C: asynchronous advantage actor-critic.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783

    rollouts -> advantages -> gradients     on every worker
       ~> one Adam step per gradient        on the learner
       -> weights                           to the worker that sent it

Differs from the paper: Adam instead of shared RMSProp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from raceway.algorithms import a2c
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.checks import check_fraction
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, ApplyGradients, ComputeGradients, TrainStats
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of A3C."""

    setting_checks: ClassVar = {"lam": check_fraction}

    fragment_steps: int = 20
    """Steps per environment in one rollout fragment, from which one gradient is computed."""
    lr: float = 7e-4
    """Learning rate."""
    lam: float = 1.0
    """Trace parameter λ of generalised advantage estimation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise_obs or self.scale_rewards:
            raise ConfigError(
                "a3c workers send gradients, not observations, so it cannot normalise. Use a2c, ppo or impala."
            )


@algorithm("a3c", Config)
def a3c(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .for_each(ComputeGradients(partial(a2c.loss, cfg=cfg)))
        .gather_async()
        .for_each(ApplyGradients(ctx.learner))
        .for_each(ctx.weights(to="senders"))
    )
