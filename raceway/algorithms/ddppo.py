"""DD-PPO: decentralised distributed PPO, in which every shard trains on its own rollouts.

Paper: Wijmans et al. 2019, https://arxiv.org/abs/1911.00357

    rollouts -> advantages, standardised over all shards
       -> epochs of minibatch gradients -> mean over all shards -> Adam step     on every worker
       -> stats

Differs from the paper: shards wait for one another's rollouts, which the paper cuts short for the slowest; the critic
has layers of its own; no recurrent networks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from raceway.agents.builders import actor_critic
from raceway.algorithms import ppo
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, MinibatchGradients, TrainStats
from raceway.rl import Fragment
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt
from raceway.settings.groups import EXECUTION


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of DD-PPO."""

    fragment_steps: PositiveInt = 256
    """Steps per environment in one rollout fragment."""
    num_epochs: PositiveInt = 10
    """Epochs over each batch."""
    num_minibatches: PositiveInt = 16
    """Minibatches per epoch, each for one gradient step: every shard splits its own rows into as many."""
    clip: PositiveFloat = 0.2
    """Clipping range ε of the probability ratio."""
    lam: Fraction = 0.95
    """Trace parameter λ of generalised advantage estimation."""
    adam_epsilon: PositiveFloat = 1e-5
    """Adam's epsilon."""
    device: Literal["cpu"] = "cpu"
    """Device of the gradient steps: the workers' CPU."""
    check_every: Annotated[PositiveInt, EXECUTION] = 10
    """Check every N iterations that all shards have the same weights."""


@algorithm("ddppo", Config, agent=actor_critic)
def ddppo(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    all_reduce = ctx.all_reduce()
    gradients = MinibatchGradients(
        partial(ppo.loss, cfg=cfg), cfg.learner, num_epochs=cfg.num_epochs, num_minibatches=cfg.num_minibatches,
        standardise="advantage", check_every=cfg.check_every,
    )  # fmt: skip
    return (
        rollouts.on_failure("restart", on_restart=all_reduce.send_to, **ctx.failure_policy)
        .for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .transform(gradients)
        .gather_sync()
        .combine(all_reduce)
    )
