"""MAML: model-agnostic meta-learning, for policies that adapt to a task by a step or two.

Paper: Finn et al. 2017, https://arxiv.org/abs/1703.03400

    rollouts -> advantages                          on every worker, each shard in a task of its own
       -> a step for every task, and rollouts again, n times
       -> K Adam steps through these steps          on the learner
       -> weights                                   to all workers, and new tasks

Differs from the paper: PPO's clipped objective and Adam instead of TRPO for the meta-step, and probability ratios in
the inner loss, whose second derivatives are the right ones; both as in ProMP (https://arxiv.org/abs/1810.06784).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from raceway.agents import Policy
from raceway.algorithms.base import AlgorithmConfig, Context, algorithm
from raceway.checks import check_int, check_positive
from raceway.envs import Slots, has_tasks
from raceway.errors import ConfigError
from raceway.flow import Iter, ParIter
from raceway.learner.adaptation import adapted
from raceway.ops import FitBaseline, InnerAdapt, MetaUpdate, TrainStats
from raceway.rl import Batch


@dataclass(frozen=True, kw_only=True)
class Config(AlgorithmConfig):
    """Settings of MAML."""

    clip_actions: ClassVar[bool] = True

    env: Any = "point"
    """Environment of tasks: point, cheetah-direction, or any with set_task(task) and sample_tasks(num, seed)."""
    num_shards: int | None = 20
    """Tasks of an iteration: each shard plays in one."""
    num_envs: int = 200
    """Episodes of a round, in all tasks together."""
    hidden: tuple[int, ...] | None = (64, 64)
    """Widths of the hidden layers."""
    lr: float = 1e-3
    """Adam step size of the meta-step."""
    inner_lr: float = 0.1
    """Step size of adapting, α."""
    inner_steps: int = 1
    """Steps of adapting, each after a round of episodes."""
    first_order: bool = False
    """Leave out the second derivatives in the meta-step."""
    num_epochs: int = 5
    """Adam steps on the episodes of an iteration."""
    clip: float = 0.2
    """How far the probability of an action may move in these, as a share."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_int("inner_steps", self.inner_steps)
        check_positive("inner_lr", self.inner_lr)

    def for_env(self, slots: Slots) -> Self:
        """Refuse environments without tasks."""
        if not has_tasks(slots):
            advice = "Use --env point, or give it sample_tasks(num, seed) and set_task(task)."
            raise ConfigError(f"maml is for environments of tasks, and {self.env} has none. {advice}")
        return super().for_env(slots)

    @property
    def amount(self) -> dict[str, Any]:
        """Play whole episodes, in one task before every step of adapting and after the last."""
        return {"num_episodes": self.num_envs, "items_per_task": self.inner_steps + 1}


PRESETS: dict[str, dict[str, Any]] = {
    "PointGoals-v0": {"lr": 2e-3, "inner_lr": 0.3, "total_timesteps": 800_000},
    "HalfCheetahDirection-v0": {
        "num_shards": 2, "num_envs": 80, "lr": 3e-3, "inner_lr": 0.5, "num_epochs": 10, "total_timesteps": 2_000_000,
    },
}  # fmt: skip


def inner_loss(policy: Policy, batch: Batch) -> Tensor:
    """Return -ρ A, the mean over the batch, [N]. ρ is π(a|s) by what it was when the action was drawn."""
    return -((policy.log_prob(batch) - batch["log_prob"]).exp() * batch["advantage"]).mean()


def loss(policy: Policy, batch: Batch, cfg: Config) -> Tensor:
    """Return -min(ρ A, clip(ρ, 1 - ε, 1 + ε) A), the mean over the batch, [N]."""
    ratio, advantage = (policy.log_prob(batch) - batch["log_prob"]).exp(), batch["advantage"]
    return -torch.min(ratio * advantage, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * advantage).mean()


@algorithm("maml", Config, actions=("box",), presets=PRESETS)
def maml(rollouts: ParIter[Batch], cfg: Config, ctx: Context) -> Iter[TrainStats]:
    """Return the plan."""
    adapt = partial(adapted, ctx.learner.policy, inner_loss, cfg.inner_lr)
    inner = InnerAdapt(ctx.weights(), adapt, cfg.inner_steps)
    meta_loss = partial(loss, cfg=cfg)
    return (
        rollouts.on_failure("restart", on_restart=inner.send_to, **ctx.bears)
        .for_each(FitBaseline(cfg.gamma))
        .gather_sync()
        .combine(inner)
        .for_each(MetaUpdate(ctx.learner, adapt, meta_loss, num_epochs=cfg.num_epochs, first_order=cfg.first_order))
        .for_each(ctx.weights())
    )
