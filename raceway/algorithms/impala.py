"""IMPALA: asynchronous actor-critic with V-trace off-policy correction.

Paper: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561

    rollouts                              on every worker
       ~> one batch of several fragments
       -> one Adam step with V-trace      on the learner
       -> weights                         to the workers that sent them

Differs from the paper: Adam instead of RMSProp; the networks are those of the catalogue's other algorithms.
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
from raceway.ops import AddLogProbs, ConcatFragments, Fresh, TrainOneStep, TrainStats
from raceway.rl import Batch, Fragment, fragment_v_trace
from raceway.settings.field_types import PositiveFloat, PositiveInt


@dataclass(frozen=True, kw_only=True)
class Config(VTraceConfig):
    """Settings of IMPALA."""

    num_learners: PositiveInt = 1
    """Learners: each batch is divided among as many actors, which compute its gradients. Affects the last bits of the
    results."""
    lr: PositiveFloat = 6e-4
    """Learning rate."""
    entropy_coef: float = 0.01
    """Coefficient of the entropy bonus."""


def loss(agent: ActorCritic, batch: Batch, cfg: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log π(a|s) A + c₁ (V(s) - v)² - c₂ H(π(·|s)), averaged over the valid steps; the batch is [T, B].

    The advantage A and the value target v are V-trace's, which corrects for the lag of the behaviour policy.
    """
    params, values, next_value = agent.evaluate_fragment(batch)
    log_prob, entropies = agent.actor.distribution.log_prob_and_entropy(params, batch["action"])
    with torch.no_grad():
        log_ratios = log_prob - batch["log_prob"]
        value_targets, advantages = fragment_v_trace(
            log_ratios, values, next_value, batch, cfg.gamma, lam=cfg.lam, max_rho=cfg.max_rho
        )
    valid = batch.get("valid", torch.ones_like(values))
    weights = valid / valid.sum()
    policy_loss = -(log_prob * advantages * weights).sum()
    value_loss = ((values - value_targets).square() * weights).sum()
    entropy = (entropies * weights).sum()
    total = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
    return total, {"policy_gradient_loss": policy_loss, "value_loss": value_loss, "entropy_loss": -entropy}


@algorithm("impala", Config, agent=actor_critic, recurrent=True)
def impala(rollouts: ParIter[Fragment], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    weights, objective = ctx.weights(to="senders"), partial(loss, cfg=cfg)
    train = TrainOneStep(ctx.learner, objective, members=ctx.members(cfg, objective))
    return (
        rollouts.for_each(AddLogProbs(cfg.gamma, cfg.scale_rewards))
        .gather_async(cfg.num_async)
        .filter(Fresh(weights, cfg.max_lag))
        .combine(ConcatFragments(cfg.batch_steps))
        .for_each(train, **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(weights)
    )
