"""A2C: synchronous advantage actor-critic.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783

    rollouts -> advantages      on every worker
       -> one batch
       -> one Adam step         on the learner
       -> weights               to all workers

Differs from the paper: synchronous (the asynchronous version is `a3c`), and Adam instead of RMSProp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from raceway.agents import ActorCritic
from raceway.agents.builders import actor_critic
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, ConcatBatches, TrainOneStep, TrainStats
from raceway.rl import Batch, Fragment
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of A2C."""

    fragment_steps: PositiveInt = 5
    """Steps per environment in one rollout fragment."""
    batch_steps: PositiveInt = 1
    """Minimum environment steps per batch; rounds of fragments are collected until it is reached."""
    lr: PositiveFloat = 7e-4
    """Learning rate."""
    lam: Fraction = 1.0
    """Trace parameter λ of generalised advantage estimation."""


def loss(agent: ActorCritic, batch: Batch, cfg: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log π(a|s) A + c₁ (V(s) - target)² - c₂ H(π(·|s)), averaged over the batch, [N].

    Policy gradient loss with advantage A, value loss with weight c₁, and entropy bonus with weight c₂.
    """
    params, values = agent.evaluate(batch)
    log_prob, entropies = agent.actor.distribution.log_prob_and_entropy(params, batch["action"])
    policy_loss = -(log_prob * batch["advantage"]).mean()
    value_loss = (values - batch["value_target"]).square().mean()
    entropy = entropies.mean()
    total = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
    return total, {"policy_gradient_loss": policy_loss, "value_loss": value_loss, "entropy_loss": -entropy}


@algorithm("a2c", Config, agent=actor_critic, recurrent=True)
def a2c(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .gather_sync()
        .combine(ConcatBatches(cfg.batch_steps))
        .for_each(TrainOneStep(ctx.learner, partial(loss, cfg=cfg)))
        .for_each(ctx.weights())
    )
