"""IMPACT: importance-weighted asynchronous PPO with a target policy and a circular buffer of batches.

Paper: Luo et al. 2019, https://arxiv.org/abs/1912.00167

    rollouts                                       on every worker
       ~> one batch of several fragments
       -> circular buffer                          which gives each batch several times
       -> one Adam step with V-trace, clipped      on the learner
       -> target policy
       -> weights                                  to the workers that sent them

Differs from the paper: batches are given in a fixed order, each for the first time when it arrives; the target policy
is evaluated whenever a batch is trained on, not once when it arrives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from raceway.agents import ActorCritic
from raceway.agents.builders import actor_critic
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import VTraceConfig
from raceway.flow import Iter, ParIter
from raceway.ops import (
    AddLogProbs,
    CircularBatches,
    ConcatFragments,
    Fresh,
    MergeStats,
    Target,
    TrainOneStep,
    TrainStats,
)
from raceway.rl import Batch, Fragment, clipped_surrogate, fragment_v_trace, target_worker_ratio
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(VTraceConfig):
    """Settings of IMPACT."""

    lr: PositiveFloat = 5e-4
    """Learning rate."""
    num_batches: PositiveInt = 8
    """Size N of the circular buffer: a batch is dropped when N newer ones have arrived."""
    batch_uses: PositiveInt = 2
    """Gradient steps K on each batch, spread over its time in the buffer."""
    clip: PositiveFloat = 0.4
    """Clipping range ε of the probability ratio."""
    max_worker_ratio: PositiveFloat = 2.0
    """Clipping threshold of the ratio of the behaviour policy to the target policy."""
    target_every: PositiveInt = 2
    """Update the target policy every N gradient steps."""
    tau: Fraction = 1.0
    """Share τ of the trained weights in each update of the target policy."""
    entropy_coef: float = 0.01
    """Coefficient of the entropy bonus."""


def loss(agent: ActorCritic, batch: Batch, cfg: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) + c₁ (V(s) - v)² - c₂ H(π(·|s)), averaged over the valid steps, [T, B].

    ρ = min(μ/π', ρ̄) π/μ is the probability ratio to the target policy π', limited where π' had hardly chosen an action
    of the behaviour policy μ. The value target v and the advantage A = v - V(s) are V-trace's, which corrects for π'/μ.
    """
    params, values, next_value = agent.evaluate_fragment(batch)
    distribution, actions = agent.actor.distribution, batch["action"]
    log_prob, entropies = distribution.log_prob_and_entropy(params, actions)
    with torch.no_grad():
        target_log_prob = distribution.log_prob(agent.target.fragment_params(batch), actions)
        log_ratios = target_log_prob - batch["log_prob"]
        value_targets, _ = fragment_v_trace(
            log_ratios, values, next_value, batch, cfg.gamma, lam=cfg.lam, max_rho=cfg.max_rho
        )
        advantages = value_targets - values
    ratio = target_worker_ratio(log_prob, target_log_prob, batch["log_prob"], cfg.max_worker_ratio)
    valid = batch.get("valid", torch.ones_like(values))
    weights = valid / valid.sum()
    policy_loss = -(clipped_surrogate(ratio, advantages, cfg.clip) * weights).sum()
    value_loss = ((values - value_targets).square() * weights).sum()
    entropy = (entropies * weights).sum()
    metrics = {
        "policy_gradient_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": -entropy,
        "clip_fraction": (((ratio - 1).abs() > cfg.clip) * weights).sum(),
    }
    return policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy, metrics


@algorithm("impact", Config, agent=actor_critic, recurrent=True)
def impact(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    weights = ctx.weights(to="senders")
    targets = Target("actor", tau=cfg.tau, every=cfg.target_every)
    train = TrainOneStep(ctx.learner, partial(loss, cfg=cfg), targets=targets)
    return (
        rollouts.for_each(AddLogProbs(cfg.gamma, cfg.scale_rewards))
        .gather_async(cfg.num_async)
        .filter(Fresh(weights, cfg.max_lag))
        .combine(ConcatFragments(cfg.batch_steps))
        .combine(CircularBatches(cfg.num_batches, cfg.batch_uses))
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(weights)
        .combine(MergeStats())
    )
