"""PPO: proximal policy optimisation with a clipped objective.

Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347

    rollouts -> advantages                          on every worker
       -> one batch, advantages standardised
       -> epochs of Adam steps on minibatches       on the learner
       -> weights                                   to all workers

Differs from the paper: advantages are standardised over the whole batch, and gradients are clipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raceway.agents import ActorCritic
from raceway.agents.builders import actor_critic
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, ConcatBatches, StandardizeFields, TrainOneStep, TrainStats
from raceway.rl import Batch, Fragment
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of PPO."""

    fragment_steps: PositiveInt = 256
    """Steps per environment in one rollout fragment."""
    batch_steps: PositiveInt = 1
    """Minimum environment steps per batch; rounds of fragments are collected until it is reached."""
    num_epochs: PositiveInt = 10
    """Epochs over each batch."""
    num_minibatches: PositiveInt = 32
    """Minibatches per epoch, each for one gradient step. For a recurrent network at most one for each sequence."""
    clip: PositiveFloat = 0.2
    """Clipping range ε of the probability ratio."""
    lam: Fraction = 0.95
    """Trace parameter λ of generalised advantage estimation."""
    num_learners: PositiveInt = 1
    """Learners: each minibatch is divided among as many actors, which compute its gradients. Affects the last bits of
    the results."""
    adam_epsilon: PositiveFloat = 1e-5
    """Adam's epsilon."""


def loss(agent: ActorCritic, batch: Batch, cfg: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) + c₁ (V(s) - target)² - c₂ H(π(·|s)), averaged over the batch, [N].

    ρ = π/π_old is the probability ratio to the behaviour policy.
    """
    params, values = agent.evaluate(batch)
    log_prob, entropies = agent.actor.distribution.log_prob_and_entropy(params, batch["action"])
    log_ratio = log_prob - batch["log_prob"]
    ratio, advantage = log_ratio.exp(), batch["advantage"]
    clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_loss = (values - batch["value_target"]).square().mean()
    entropy = entropies.mean()
    metrics = {
        "policy_gradient_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": -entropy,
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": (clipped != ratio).float().mean(),
    }
    return policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy, metrics


@algorithm("ppo", Config, agent=actor_critic, recurrent=True)
def ppo(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    objective = partial(loss, cfg=cfg)
    train = TrainOneStep(
        ctx.learner, objective, num_epochs=cfg.num_epochs, num_minibatches=cfg.num_minibatches,
        members=ctx.members(cfg, objective),
    )  # fmt: skip
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .gather_sync()
        .combine(ConcatBatches(cfg.batch_steps))
        .for_each(StandardizeFields("advantage"))
        .for_each(train)
        .for_each(ctx.weights())
    )
