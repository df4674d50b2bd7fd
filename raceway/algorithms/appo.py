"""APPO: asynchronous PPO, with IMPALA's plan, PPO's clipped objective and a target policy.

Paper: Schulman et al. 2017 (PPO), https://arxiv.org/abs/1707.06347, and Espeholt et al. 2018 (IMPALA),
https://arxiv.org/abs/1802.01561; the target policy is that of Luo et al. 2019 (IMPACT),
https://arxiv.org/abs/1912.00167

    rollouts                                       on every worker
       ~> one batch of several fragments
       -> Adam steps with V-trace, clipped         on the learner
       -> target policy
       -> weights                                  to the workers that sent them

Differs from the papers: there is none of this combination; RLlib and Sample Factory have algorithms of this name. The
probability ratio is to the target policy, as in IMPACT, without IMPACT's circular buffer and its limit of the ratio.
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
from raceway.ops import AddLogProbs, ConcatFragments, Fresh, Target, TrainOneStep, TrainStats
from raceway.rl import Batch, Fragment, clipped_surrogate, fragment_v_trace
from raceway.settings.field_types import Fraction, PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(VTraceConfig):
    """Settings of APPO."""

    lr: PositiveFloat = 5e-4
    """Learning rate."""
    num_epochs: PositiveInt = 1
    """Gradient steps on each batch."""
    clip: PositiveFloat = 0.4
    """Clipping range ε of the probability ratio."""
    target_every: PositiveInt = 2
    """Update the target policy every N gradient steps."""
    tau: Fraction = 1.0
    """Share τ of the trained weights in each update of the target policy."""
    entropy_coef: float = 0.01
    """Coefficient of the entropy bonus."""


def loss(agent: ActorCritic, batch: Batch, cfg: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) + c₁ (V(s) - v)² - c₂ H(π(·|s)), averaged over the valid steps, [T, B].

    ρ = π/π' is the probability ratio to the target policy π'. The value target v and the advantage A = v - V(s) are
    V-trace's, which corrects for the ratio of π' to the behaviour policy. If all policies are the same, A is that of
    generalised advantage estimation, and the loss is PPO's.
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
    ratio = (log_prob - target_log_prob).exp()
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


@algorithm("appo", Config, agent=actor_critic, recurrent=True)
def appo(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    weights = ctx.weights(to="senders")
    targets = Target("actor", tau=cfg.tau, every=cfg.target_every)
    train = TrainOneStep(ctx.learner, partial(loss, cfg=cfg), num_epochs=cfg.num_epochs, targets=targets)
    return (
        rollouts.for_each(AddLogProbs(cfg.gamma, cfg.scale_rewards))
        .gather_async(cfg.num_async)
        .filter(Fresh(weights, cfg.max_lag))
        .combine(ConcatFragments(cfg.batch_steps))
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(weights)
    )
