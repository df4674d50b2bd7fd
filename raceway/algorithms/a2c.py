"""A2C: advantage actor-critic, in step.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783

    rollouts -> advantages      on every worker
       -> one batch
       -> one Adam step         on the learner
       -> weights               to all workers

Differs from the paper: in step instead of asynchronous (that is `a3c`), and Adam instead of RMSProp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from raceway.agents import Policy
from raceway.algorithms.base import Context, algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, ConcatBatches, TrainOneStep, TrainStats
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of A2C."""

    fragment_steps: int = 5
    """Steps that each environment plays for one step of the optimiser."""
    batch_steps: int = 1
    """Steps of environments for one batch: of as many rounds of fragments as it takes."""
    lr: float = 7e-4
    """Adam step size."""
    lam: float = 1.0
    """How far advantages look beyond one step, λ."""


_ATARI = {
    "num_envs": 16, "num_shards": 2, "hidden": (512,), "value_coef": 0.25, "entropy_coef": 0.01,
    "total_timesteps": 10_000_000,
}  # fmt: skip
_MUJOCO = {
    "num_envs": 32, "num_shards": 2, "fragment_steps": 16, "lam": 0.9, "value_coef": 0.4, "lr": 9.6e-4,
    "normalise_obs": True, "scale_rewards": True, "total_timesteps": 2_000_000,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"num_envs": 16, "num_shards": 1, "fragment_steps": 8, "lr": 3e-3, "total_timesteps": 500_000},
    "Acrobot-v1": {
        "num_envs": 16, "num_shards": 2, "fragment_steps": 16, "lr": 2e-3, "normalise_obs": True,
        "total_timesteps": 500_000,
    },
    "Pendulum-v1": {
        "num_envs": 16, "num_shards": 2, "fragment_steps": 16, "gamma": 0.9, "lam": 0.9, "lr": 1e-3,
        "normalise_obs": True, "scale_rewards": True, "total_timesteps": 1_000_000,
    },
    "LunarLander-v3": {
        "num_envs": 16, "num_shards": 2, "fragment_steps": 16, "gamma": 0.995, "lam": 0.98, "lr": 1e-3,
        "normalise_obs": True, "scale_rewards": True, "total_timesteps": 1_000_000,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Ant-v5": _MUJOCO,
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}  # fmt: skip


def loss(policy: Policy, batch: Batch, cfg: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return -log π(a|s) A + c₁ (V(s) - target)² - c₂ H(π(·|s)), means over the batch, [N]."""
    params, values = policy.evaluate(batch["obs"])
    log_prob, entropies = policy.distribution.log_prob_and_entropy(params, batch["action"])
    policy_loss = -(log_prob * batch["advantage"]).mean()
    value_loss = (values - batch["value_target"]).square().mean()
    entropy = entropies.mean()
    total = policy_loss + cfg.value_coef * value_loss - cfg.entropy_coef * entropy
    return total, {"policy_gradient_loss": policy_loss, "value_loss": value_loss, "entropy_loss": -entropy}


@algorithm("a2c", Config, presets=PRESETS)
def a2c(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .gather_sync()
        .combine(ConcatBatches(cfg.batch_steps))
        .for_each(TrainOneStep(ctx.learner, partial(loss, cfg=cfg)))
        .for_each(ctx.weights())
    )
