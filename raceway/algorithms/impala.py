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
from typing import ClassVar

import torch
from torch import Tensor

from raceway.agents import Policy
from raceway.algorithms.context import Context
from raceway.algorithms.registry import algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.checks import check_fraction, check_int, check_positive
from raceway.flow import Iter, ParIter
from raceway.ops import AddLogProbs, ConcatFragments, Fresh, TrainOneStep, TrainStats
from raceway.rl import Batch, v_trace


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of IMPALA."""

    setting_checks: ClassVar = {
        **dict.fromkeys(("num_fragments", "num_async", "learner_queue", "max_lag"), check_int),
        "lam": check_fraction,
        "max_rho": check_positive,
    }

    num_envs: int = 32
    """Number of parallel environments, over all shards."""
    fragment_steps: int = 20
    """Steps per environment in one rollout fragment."""
    num_fragments: int = 1
    """Fragments per gradient step, each from one shard."""
    num_async: int = 1
    """Maximum number of outstanding fragments per shard."""
    learner_on: str = "driver"
    """Where the learner runs: driver, thread (a separate thread), or actor (a separate actor)."""
    learner_queue: int = 2
    """Queue size, in batches, of a learner on a thread or an actor."""
    max_lag: int = 100
    """Maximum policy lag of a fragment, in gradient steps; older fragments are discarded."""
    lr: float = 6e-4
    """Learning rate."""
    max_grad_norm: float | None = 40.0
    """Maximum norm for gradient clipping. If not set, gradients are not clipped."""
    lam: float = 1.0
    """Trace parameter λ of V-trace."""
    max_rho: float = 1.0
    """Clipping threshold ρ̄ of the importance weights in V-trace."""
    entropy_coef: float = 0.01
    """Coefficient of the entropy bonus."""


def loss(policy: Policy, batch: Batch, cfg: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log π(a|s) A + c₁ (V(s) - v)² - c₂ H(π(·|s)), averaged over the valid steps; the batch is [T, B].

    The advantage A and the value target v are V-trace's, which corrects for the lag of the behaviour policy.
    """
    params, values = policy.evaluate(batch["obs"])
    log_prob, entropies = policy.distribution.log_prob_and_entropy(params, batch["action"])
    with torch.no_grad():
        bootstrap_value = policy.values(batch["last_obs"])
        tensors = (log_prob - batch["log_prob"], batch["reward"], values, bootstrap_value, batch["ended"])
        log_ratios, rewards, estimates, last_value, ended = (tensor.cpu().numpy() for tensor in tensors)
        v_trace_results = v_trace(
            log_ratios, rewards, estimates, last_value, ended, cfg.gamma, lam=cfg.lam, max_rho=cfg.max_rho
        )
        value_targets, advantages = (torch.from_numpy(array).to(values.device) for array in v_trace_results)
    valid = batch["valid"] if "valid" in batch else torch.ones_like(values)
    weights = valid / valid.sum()
    policy_loss = -(log_prob * advantages * weights).sum()
    value_loss = ((values - value_targets).square() * weights).sum()
    entropy = (entropies * weights).sum()
    total = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
    return total, {"policy_gradient_loss": policy_loss, "value_loss": value_loss, "entropy_loss": -entropy}


@algorithm("impala", Config)
def impala(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    weights = ctx.weights(to="senders")
    return (
        rollouts.for_each(AddLogProbs(cfg.gamma, cfg.scale_rewards))
        .gather_async(cfg.num_async)
        .filter(Fresh(weights, cfg.max_lag))
        .batch(cfg.num_fragments)
        .for_each(ConcatFragments())
        .for_each(TrainOneStep(ctx.learner, partial(loss, cfg=cfg)), **ctx.place(cfg.learner_on, cfg.learner_queue))
        .for_each(weights)
    )
