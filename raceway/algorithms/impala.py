"""IMPALA: actors that do not wait for the learner, and corrections for that.

Paper: Espeholt et al. 2018, https://arxiv.org/abs/1802.01561

    rollouts                           on every worker
       ~> one batch of several
       -> one Adam step on V-trace     on the learner
       -> weights                      to the workers whose fragments were used

Differs from the paper: Adam instead of RMSProp; the networks are those of the other algorithms here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from raceway.agents import Policy
from raceway.algorithms.base import Context, algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.flow import Iter, ParIter
from raceway.ops import AddLogProbs, ConcatFragments, Fresh, TrainOneStep, TrainStats
from raceway.rl import Batch, v_trace


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of IMPALA."""

    num_envs: int = 32
    """Environments that are played at the same time, in all shards together."""
    fragment_steps: int = 20
    """Steps that each environment plays for one fragment."""
    num_fragments: int = 1
    """Fragments, each of one shard, for one step of the optimiser."""
    num_async: int = 1
    """Fragments that a shard may be ahead."""
    learner_on: str = "driver"
    """Where the learner lives: in the driver, on a thread of its own, or in an actor of its own."""
    learner_queue: int = 2
    """Batches that may wait for a learner that has a thread or an actor of its own."""
    max_lag: int = 100
    """Steps of the optimiser that the weights behind a fragment may be old; older fragments are not used."""
    lr: float = 6e-4
    """Adam step size."""
    max_grad_norm: float | None = 40.0
    """Norm that gradients are clipped to; without it, they are not."""
    lam: float = 1.0
    """How far the targets look beyond one step, λ."""
    max_rho: float = 1.0
    """The most that an action counts, ρ̄."""
    entropy_coef: float = 0.01
    """Weight of the entropy of the policy."""


_ATARI = {
    "num_shards": 2, "hidden": (512,), "total_timesteps": 10_000_000,
}  # fmt: skip
_MUJOCO = {
    "num_envs": 32, "num_shards": 2, "fragment_steps": 32, "lam": 0.95, "entropy_coef": 0.0, "max_grad_norm": 0.5,
    "normalise_obs": True, "scale_rewards": True, "total_timesteps": 2_000_000,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 80, "num_shards": 1, "fragment_steps": 24, "num_async": 2, "hidden": (32, 32),
        "activation": "relu", "shared_layers": True, "scale_rewards": True, "lr": 1.5e-2, "max_grad_norm": 0.5,
        "total_timesteps": 500_000,
    },
    "Acrobot-v1": {"num_shards": 2, "lr": 1e-3, "max_grad_norm": 0.5, "total_timesteps": 500_000},
    "Pendulum-v1": {
        "num_shards": 2, "gamma": 0.9, "lam": 0.95, "lr": 1e-3, "max_grad_norm": 0.5, "entropy_coef": 0.0,
        "total_timesteps": 1_000_000,
    },
    "LunarLander-v3": {
        "num_shards": 2, "gamma": 0.995, "lr": 1e-3, "max_grad_norm": 0.5, "total_timesteps": 1_000_000,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Ant-v5": _MUJOCO,
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}  # fmt: skip


def loss(policy: Policy, batch: Batch, cfg: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log π(a|s) A + c₁ (V(s) - v)² - c₂ H(π(·|s)), means over the steps that count; the batch is [T, B].

    The advantage A and the target v are V-trace's.
    """
    params, values = policy.evaluate(batch["obs"])
    log_prob, entropies = policy.distribution.log_prob_and_entropy(params, batch["action"])
    with torch.no_grad():
        last = policy.values(batch["last_obs"])
        known = (log_prob - batch["log_prob"], batch["reward"], values, last, batch["ended"])
        ratios, rewards, seen, beyond, ended = (one.cpu().numpy() for one in known)
        found = v_trace(ratios, rewards, seen, beyond, ended, cfg.gamma, lam=cfg.lam, max_rho=cfg.max_rho)
        targets, advantages = (torch.from_numpy(one).to(values.device) for one in found)
    counts = batch["valid"] if "valid" in batch else torch.ones_like(values)
    share = counts / counts.sum()
    policy_loss = -(log_prob * advantages * share).sum()
    value_loss = ((values - targets).square() * share).sum()
    entropy = (entropies * share).sum()
    total = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
    return total, {"policy_gradient_loss": policy_loss, "value_loss": value_loss, "entropy_loss": -entropy}


@algorithm("impala", Config, presets=PRESETS)
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
