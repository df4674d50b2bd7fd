"""A3C: asynchronous advantage actor-critic.

Paper: Mnih et al. 2016, https://arxiv.org/abs/1602.01783

    rollouts -> advantages -> gradients     on every worker
       ~> one Adam step, as they arrive     on the learner
       -> weights                           to the sender only

Differs from the paper: Adam instead of shared RMSProp.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from raceway.algorithms import a2c
from raceway.algorithms.base import Context, algorithm
from raceway.algorithms.shared_config import ActorCriticConfig
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.ops import AddAdvantages, ApplyGradients, ComputeGradients, TrainStats
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ActorCriticConfig):
    """Settings of A3C."""

    fragment_steps: int = 20
    """Steps that each environment plays for one gradient."""
    lr: float = 7e-4
    """Adam step size."""
    lam: float = 1.0
    """How far advantages look beyond one step, λ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalise_obs or self.scale_rewards:
            raise ConfigError("a3c sends gradients, not what was seen, so it cannot normalise. Use a2c, ppo or impala.")


_MUJOCO = {
    "num_envs": 32, "num_shards": 2, "fragment_steps": 50, "lam": 0.9, "value_coef": 0.4, "lr": 5e-4,
    "total_timesteps": 2_000_000,
}  # fmt: skip
_ATARI = {
    "num_envs": 16, "num_shards": 2, "hidden": (512,), "value_coef": 0.25, "entropy_coef": 0.01,
    "total_timesteps": 10_000_000,
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "CartPole-v1": {"num_envs": 16, "num_shards": 2, "fragment_steps": 16, "lr": 2e-3, "total_timesteps": 500_000},
    "Acrobot-v1": {"num_envs": 16, "num_shards": 2, "lr": 1e-3, "total_timesteps": 500_000},
    "Pendulum-v1": {
        "num_envs": 16, "num_shards": 2, "gamma": 0.9, "lam": 0.9, "lr": 1e-3, "total_timesteps": 1_000_000,
    },
    "LunarLander-v3": {
        "num_envs": 16, "num_shards": 2, "gamma": 0.995, "lam": 0.98, "lr": 1e-3, "total_timesteps": 1_000_000,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Ant-v5": _MUJOCO,
    "ALE/Pong-v5": _ATARI,
    "ALE/Breakout-v5": _ATARI,
}  # fmt: skip


@algorithm("a3c", Config, presets=PRESETS)
def a3c(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    return (
        rollouts.for_each(AddAdvantages(cfg.gamma, cfg.lam, cfg.scale_rewards))
        .for_each(ComputeGradients(partial(a2c.loss, cfg=cfg)))
        .gather_async()
        .for_each(ApplyGradients(ctx.learner))
        .for_each(ctx.weights(to="senders"))
    )
