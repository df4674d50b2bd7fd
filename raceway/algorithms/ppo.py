"""PPO: proximal policy optimisation, with a clipped objective.

Paper: Schulman et al. 2017, https://arxiv.org/abs/1707.06347

    rollouts -> advantages                          on every worker
       -> one batch, advantages standardised
       -> epochs of Adam steps over minibatches     on the learner
       -> weights                                   to all workers

Differs from the paper: advantages are standardised over the whole batch, gradients are clipped.
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
from raceway.ops import AddAdvantages, ConcatBatches, StandardizeFields, TrainOneStep, TrainStats
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of PPO."""

    fragment_steps: int = 256
    """Steps that each environment plays for one batch."""
    batch_steps: int = 1
    """Steps of environments for one batch: of as many rounds of fragments as it takes."""
    num_epochs: int = 10
    """How often the batch is gone through."""
    num_minibatches: int = 32
    """Parts that it is divided into, each for one step of the optimiser."""
    clip: float = 0.2
    """How far the probability of an action may move, as a share."""
    lam: float = 0.95
    """How far advantages look beyond one step, λ."""
    adam_epsilon: float = 1e-5
    """What Adam adds to what it divides by."""


_MUJOCO = {
    "num_envs": 64, "num_shards": 2, "fragment_steps": 32, "num_minibatches": 32, "normalise_obs": True,
    "scale_rewards": True, "lr": 3e-4, "total_timesteps": 1_000_000,
}  # fmt: skip
_ATARI = {
    "num_envs": 8, "num_shards": 2, "fragment_steps": 128, "hidden": (512,), "num_epochs": 4, "num_minibatches": 4,
    "clip": 0.1, "entropy_coef": 0.01, "lr": 2.5e-4, "total_timesteps": 10_000_000,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 64, "num_shards": 1, "fragment_steps": 32, "num_epochs": 4, "num_minibatches": 8, "gamma": 0.98,
        "lam": 0.9, "lr": 3e-3, "total_timesteps": 100_000,
    },
    "Acrobot-v1": {
        "num_envs": 16, "num_shards": 2, "fragment_steps": 256, "num_epochs": 4, "lam": 0.94, "lr": 1e-3,
        "normalise_obs": True, "total_timesteps": 150_000,
    },
    "Pendulum-v1": {
        "num_envs": 16, "num_shards": 2, "fragment_steps": 128, "num_minibatches": 16, "gamma": 0.9, "lr": 1e-3,
        "scale_rewards": True, "total_timesteps": 200_000,
    },
    "LunarLander-v3": {
        "num_envs": 16, "num_shards": 2, "fragment_steps": 512, "num_epochs": 4, "num_minibatches": 128,
        "gamma": 0.999, "lam": 0.98, "entropy_coef": 0.01, "lr": 5e-4, "scale_rewards": True,
        "total_timesteps": 1_000_000,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Ant-v5": _MUJOCO,
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}  # fmt: skip


def loss(policy: Policy, batch: Batch, cfg: Config) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A) + c₁ (V(s) - target)² - c₂ H(π(·|s)), means over the batch, [N].

    ρ is π(a|s) by what it was when the action was drawn.
    """
    params, values = policy.evaluate(batch["obs"])
    log_prob, entropies = policy.distribution.log_prob_and_entropy(params, batch["action"])
    log_ratio = log_prob - batch["log_prob"]
    ratio, advantage = log_ratio.exp(), batch["advantage"]
    clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
    policy_loss = -torch.min(ratio * advantage, clipped * advantage).mean()
    value_loss = (values - batch["value_target"]).square().mean()
    entropy = entropies.mean()
    figures = {
        "policy_gradient_loss": policy_loss,
        "value_loss": value_loss,
        "entropy_loss": -entropy,
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": (clipped != ratio).float().mean(),
    }
    return policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy, figures


@algorithm("ppo", Config, presets=PRESETS)
def ppo(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    epochs = {"num_epochs": cfg.num_epochs, "num_minibatches": cfg.num_minibatches}
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .gather_sync()
        .combine(ConcatBatches(cfg.batch_steps))
        .for_each(StandardizeFields("advantage"))
        .for_each(TrainOneStep(ctx.learner, partial(loss, cfg=cfg), **epochs))
        .for_each(ctx.weights())
    )
