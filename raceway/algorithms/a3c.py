"""A3C: asynchronous advantage actor-critic.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783

    rollouts -> advantages -> gradients     on every worker
       ~> one Adam step per gradient        on the learner
       -> weights                           to the worker that sent it

Differs from the paper: Adam instead of shared RMSProp.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Self

from raceway.agents.builders import actor_critic
from raceway.algorithms import a2c
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.envs import Slots
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, ApplyGradients, ComputeGradients, TrainStats
from raceway.rl import Fragment
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of A3C."""

    batch_steps: PositiveInt = 160
    """Minimum environment steps per gradient, which a shard collects before it computes one."""
    fragment_steps: PositiveInt | None = None
    """Steps per environment in one rollout fragment (default: batch_steps, divided by the environments of a shard)."""
    lr: PositiveFloat = 7e-4
    """Learning rate."""
    lam: Fraction = 1.0
    """Trace parameter λ of generalised advantage estimation."""

    def for_env(self, slots: Slots) -> Self:
        """Fill in the length of a fragment: the learning batch must not depend on the number of shards."""
        cfg = super().for_env(slots)
        steps = self.fragment_steps or math.ceil(self.batch_steps * (cfg.num_shards or 1) / self.num_envs)
        return dataclasses.replace(cfg, fragment_steps=steps)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise_obs or self.scale_rewards:
            raise ConfigError(
                "a3c workers send gradients, not observations, so it cannot normalise. Use a2c, ppo or impala."
            )


@algorithm("a3c", Config, agent=actor_critic, recurrent=True)
def a3c(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .for_each(ComputeGradients(partial(a2c.loss, cfg=cfg)))
        .gather_async()
        .for_each(ApplyGradients(ctx.learner))
        .for_each(ctx.weights(to="senders"))
    )
